use super::compositor::{Compositor, Tell};
use super::*;
use ext_idle_notification_v1::Event::{Idled, Resumed};

#[test]
fn a_seat_is_idle_since_a_second_before_the_compositor_says_so() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut seats = Seats { idle_since: vec![None, None], input: None };
    assert_eq!(seats.idle(at(10)), Duration::ZERO, "nothing is known yet");
    seats.handle(0, &Idled, at(10));
    assert_eq!(seats.idle(at(15)), Duration::ZERO, "the other seat is in use");
    seats.handle(1, &Idled, at(20));
    assert_eq!(seats.idle(at(30)), Duration::from_secs(11));
    seats.handle(0, &Resumed, at(40));
    assert_eq!(seats.idle(at(45)), Duration::ZERO);
    // Both notices came since the last poll: there was input in between.
    seats.handle(0, &Idled, at(50));
    seats.handle(0, &Resumed, at(60));
    seats.handle(0, &Idled, at(60));
    assert_eq!(seats.idle(at(60)), Duration::ZERO);
    assert_eq!(seats.idle(at(100)), Duration::from_secs(40));
    seats.handle(7, &Resumed, at(100));
    assert_eq!(seats.idle(at(100)), Duration::from_secs(40), "there is no such seat");
}

#[test]
fn without_a_compositor_it_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    for mut wayland in [
        Wayland::new(None, None),
        Wayland::new(None, Some(directory.path())),
        Wayland::new(Some("wayland-9".into()), None),
    ] {
        let unavailable = wayland.idle().expect_err("there is none");
        assert_eq!(unavailable.why, "there is no Wayland compositor in this session");
    }
    assert_eq!(Wayland::new(Some("/run/socket".into()), None).sockets, [PathBuf::from("/run/socket")]);
    let runtime = Path::new("/run/user/1");
    assert_eq!(Wayland::new(Some("w".into()), Some(runtime)).sockets, [runtime.join("w")]);
}

/// Asks until the answer is as wanted.
fn ask_until(wayland: &mut Wayland, wanted: impl Fn(&Sensed) -> bool) {
    let begin = Instant::now();
    loop {
        let sensed = wayland.idle();
        if wanted(&sensed) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{sensed:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_compositor_tells_when_there_is_no_input_and_when_there_is_again() {
    for (version, inhibitors_count) in [(1, true), (2, false)] {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("wayland-0");
        let compositor = Compositor::start(&socket, Some(version));
        let mut wayland = Wayland::new(None, Some(directory.path()));
        ask_until(&mut wayland, |sensed| sensed.is_ok());
        assert_eq!(
            compositor.asked.recv_timeout(Duration::from_secs(60)).expect("it was asked"),
            (inhibitors_count, 1_000)
        );
        compositor.tell(Tell::Idled);
        ask_until(&mut wayland, |sensed| sensed.as_ref().is_ok_and(|idle| *idle >= IDLE_AFTER));
        compositor.tell(Tell::Resumed);
        ask_until(&mut wayland, |sensed| sensed.as_ref().is_ok_and(|idle| *idle < IDLE_AFTER));
        drop(compositor);
        ask_until(&mut wayland, |sensed| sensed.is_err());
    }
}

#[test]
fn a_compositor_that_cannot_tell_is_no_source() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("wayland-1");
    let _compositor = Compositor::start(&socket, None);
    let mut wayland = Wayland::new(Some(socket), None);
    let unavailable = wayland.idle().expect_err("it cannot");
    assert_eq!(unavailable.why, "this compositor has no ext-idle-notify-v1");
}
