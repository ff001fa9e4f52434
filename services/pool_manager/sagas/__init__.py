"""One file per saga: the drawing, what unwinding leaves behind, the table, the actions."""
