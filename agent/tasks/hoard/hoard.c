/* hoard: takes of the disk what is hard to see and hard to remove, as its first argument says. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  return 4;
}

static int wait_for(const char *milliseconds) {
  long pause = strtol(milliseconds, NULL, 10);
  struct timespec t = {pause / 1000, pause % 1000 * 1000000};
  return nanosleep(&t, NULL);
}

/* nest LEVELS MILLISECONDS: directories, one in the other, whatever a path can say; and then waits */
static int nest(long levels, const char *milliseconds) {
  int at = open(".", O_RDONLY | O_DIRECTORY);
  for (long i = 0; i < levels; i++) {
    int below;
    if (at < 0 || mkdirat(at, "d", 0700) != 0) return failed("mkdirat");
    below = openat(at, "d", O_RDONLY | O_DIRECTORY);
    close(at);
    at = below;
  }
  if (at < 0) return failed("openat");
  close(at);
  return wait_for(milliseconds);
}

/* files COUNT MILLISECONDS: empty ones, and then waits */
static int files(long count, const char *milliseconds) {
  for (long i = 0; i < count; i++) {
    char name[32];
    int made;
    snprintf(name, sizeof name, "%ld", i);
    made = open(name, O_WRONLY | O_CREAT, 0600);
    if (made < 0 || close(made) != 0) return failed("open");
  }
  return wait_for(milliseconds);
}

/* hold FILES BYTES MILLISECONDS: files that it removes and keeps open, and then waits */
static int hold(long count, long bytes, const char *milliseconds) {
  static char block[1 << 16];
  /* The file for that takes a descriptor, too. */
  fprintf(stderr, "holding\n");
  for (long i = 0; i < count; i++) {
    int held = open("held", O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (held < 0 || unlink("held") != 0) return failed("held");
    for (long written = 0; written < bytes;) {
      ssize_t n = write(held, block, bytes - written < (long)sizeof block ? (size_t)(bytes - written) : sizeof block);
      if (n < 0) return failed("write");
      written += n;
    }
  }
  return wait_for(milliseconds);
}

int main(int argc, char **argv) {
  if (argc == 4 && !strcmp(argv[1], "nest")) return nest(strtol(argv[2], NULL, 10), argv[3]);
  if (argc == 4 && !strcmp(argv[1], "files")) return files(strtol(argv[2], NULL, 10), argv[3]);
  if (argc == 5 && !strcmp(argv[1], "hold")) return hold(strtol(argv[2], NULL, 10), strtol(argv[3], NULL, 10), argv[4]);
  fprintf(stderr, "hoard nest LEVELS MILLISECONDS | files COUNT MILLISECONDS | hold FILES BYTES MILLISECONDS\n");
  return 2;
}
