"""Lessons: courses as folders, the folder of a student, attempts, and the grades of a class."""
