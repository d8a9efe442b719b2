"""What container runtimes leave in files about the containers they run."""
