"""What people watch Flyball with: dashboards from one list of panels, and the Prometheus that proves their queries."""
