;; distinct LINE [anything]: prints LINE. With a third argument it computes for five milliseconds by the monotonic clock before.
;; By hand, since the C library's printing imports more than a task that only prints needs. `wat2wasm distinct.wat` rebuilds it.
(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (local $until i64)
    ;; 0: number of arguments, 4: their bytes, 8: time, 16: an iovec, 24: bytes written, 32: pointers, 1024: the arguments
    (drop (call $args_sizes_get (i32.const 0) (i32.const 4)))
    (drop (call $args_get (i32.const 32) (i32.const 1024)))
    (if (i32.gt_u (i32.load (i32.const 0)) (i32.const 2))
      (then
        (drop (call $clock_time_get (i32.const 1) (i64.const 0) (i32.const 8)))
        (local.set $until (i64.add (i64.load (i32.const 8)) (i64.const 5000000)))
        (loop $again
          (drop (call $clock_time_get (i32.const 1) (i64.const 0) (i32.const 8)))
          (br_if $again (i64.lt_u (i64.load (i32.const 8)) (local.get $until))))
        ;; The end of LINE is where the third argument begins.
        (i32.store (i32.const 20)
          (i32.sub (i32.sub (i32.load (i32.const 40)) (i32.load (i32.const 36))) (i32.const 1))))
      (else
        (i32.store (i32.const 20)
          (i32.sub (i32.sub (i32.add (i32.const 1024) (i32.load (i32.const 4))) (i32.load (i32.const 36))) (i32.const 1)))))
    (i32.store (i32.const 16) (i32.load (i32.const 36)))
    (drop (call $fd_write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24)))))
