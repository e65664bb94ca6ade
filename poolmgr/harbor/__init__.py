"""Task datasets: rows, Harbor task folders, archives, environments."""
