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
    // Both were told since the agent asked last: there was input all the same.
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
