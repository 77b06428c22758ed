"""Makes the Grafana boards of deploy/grafana from tables, and checks what they show."""
