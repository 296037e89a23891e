"""What other systems tell the service in their own words."""
