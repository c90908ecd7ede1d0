/* chance: prints what differs between two runs: the time, how long it waited for it to pass, and random numbers. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int64_t now(clockid_t clock) {
  struct timespec t = {0, 0};
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(void) {
  unsigned char drawn[16];
  int64_t begin = now(CLOCK_MONOTONIC), looks = 0;
  while (now(CLOCK_MONOTONIC) < begin + 2000000) looks++;
  if (getentropy(drawn, sizeof drawn) != 0) return 1;
  printf("%lld %lld %lld ", (long long)now(CLOCK_REALTIME), (long long)begin, (long long)looks);
  for (unsigned i = 0; i < sizeof drawn; i++) printf("%02x", drawn[i]);
  printf("\n");
  return 0;
}
