/* noop: does nothing. What a task costs when the task itself costs nothing. */
int main(void) { return 0; }
