"""Define the records that nodes write: events and observations."""
