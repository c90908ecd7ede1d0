use super::*;

fn reading(at: Instant) -> Reading {
    Reading { at, not_before: at, holds: false }
}

#[test]
fn the_latest_input_counts_and_hints_only_where_no_display_is_watched() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let last = |list: &[(SourceName, Reading)]| last_input(&list.iter().copied().collect()).map(|last| last.at);
    let (terminals, logind) = ((SourceName::Terminals, reading(at(5))), (SourceName::Logind, reading(at(9))));
    assert_eq!(last(&[]), None);
    assert_eq!(last(&[terminals]), Some(at(5)));
    assert_eq!(last(&[terminals, logind]), Some(at(9)));
    for display in [SourceName::X11, SourceName::Mutter, SourceName::Wayland] {
        assert_eq!(last(&[terminals, logind, (display, reading(at(3)))]), Some(at(5)), "{display:?}");
        assert_eq!(last(&[terminals, logind, (display, reading(at(7)))]), Some(at(7)), "{display:?}");
    }
    let file = Reading { holds: true, ..reading(at(1)) };
    let readings = [terminals, (SourceName::File, file)].into_iter().collect();
    assert_eq!(last_input(&readings), Some(file), "whoever is there by file is there");
}

#[test]
fn an_idle_time_that_grows_is_no_news() {
    let start = Instant::now();
    let later = |millis| reading(start + Duration::from_millis(millis));
    let mut all = Readings::new();
    assert!(update(&mut all, SourceName::X11, later(0)), "the first reading is");
    assert!(!update(&mut all, SourceName::X11, later(40)), "clocks do not agree to the millisecond");
    assert!(!update(&mut all, SourceName::X11, later(0)));
    assert!(update(&mut all, SourceName::X11, later(61)));
    assert_eq!(all[&SourceName::X11], later(61));
    assert!(update(&mut all, SourceName::Terminals, later(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_holds_until_it_is_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("owner");
    let mut watch = Watch::start(Probe::File(path.clone()));
    assert!(watch.is_file());
    assert_eq!(watch.last_input(), None);
    std::fs::write(&path, "").expect("our directory");
    watch.changed().await;
    let reading = watch.last_input().expect("it is there");
    assert!(reading.holds && reading.not_before <= reading.at);
    std::fs::remove_file(&path).expect("it is there");
    watch.changed().await;
    assert_eq!(watch.last_input(), None);
}
