"""Run public trainers unmodified, and write what became of each as a page."""
