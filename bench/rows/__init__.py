"""The rows of the table. Each module measures one question; `KEYS` are the rows of the specification that it fills."""
