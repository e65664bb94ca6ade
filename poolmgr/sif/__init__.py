"""What is inside an image: SIF and squashfs, read, checked and written."""
