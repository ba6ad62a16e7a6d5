"""What the command line prints: tables and small curves that read well at 80 columns, and what to do next."""
