"""What several results say together: tables and pictures of scaling laws."""
