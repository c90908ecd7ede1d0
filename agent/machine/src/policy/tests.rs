use super::*;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// Nobody is there, a Friday at noon.
fn quiet() -> Facts {
    Facts {
        input: Input::Idle(Duration::from_secs(3600)),
        on_battery: false,
        foreign_cpu: Some(0.0),
        program: None,
        disk_room: 1.0,
        local: LocalTime { weekday: 4, minute: 12 * 60 },
    }
}

fn settings(change: impl FnOnce(&mut OwnerSettings)) -> OwnerSettings {
    let mut settings = OwnerSettings::default();
    change(&mut settings);
    settings
}

/// The judgement of a policy that knows of nothing before.
fn judged(settings: &OwnerSettings, facts: &Facts, orders: Orders) -> Judgement {
    let mut policy = Policy::new(at(0));
    policy.judge(at(7), settings, facts, orders);
    policy.judgement().clone()
}

const PAUSED: Orders = Orders { pause: Some(Pause { until: None }), finish: false };
const FINISH: Orders = Orders { pause: None, finish: true };
const NONE: Orders = Orders { pause: None, finish: false };

#[test]
fn every_reason_has_its_effect_and_the_first_one_is_reported() {
    let usual = OwnerSettings::default();
    let nights = settings(|settings| settings.hours = vec!["22-7".parse().expect("hours")]);
    let battery_is_fine = settings(|settings| settings.on_battery = true);
    let shared = settings(|settings| settings.in_use_cpu_percent = 30);
    let half = settings(|settings| settings.idle_cpu_percent = 50);
    let cpu_is_fine = settings(|settings| settings.foreign_cpu_percent = 100);
    let idle = |seconds| Facts { input: Input::Idle(Duration::from_secs(seconds)), ..quiet() };
    let there = Facts { input: Input::Present, ..quiet() };
    let battery = Facts { on_battery: true, ..quiet() };
    let steam = Facts { program: Some("steam".to_owned()), ..quiet() };
    let busy = Facts { foreign_cpu: Some(0.26), ..quiet() };
    let full = Facts { disk_room: 0.04, ..quiet() };
    let all = Facts {
        input: Input::Present,
        on_battery: true,
        program: steam.program.clone(),
        foreign_cpu: Some(1.0),
        ..quiet()
    };
    for (name, settings, facts, orders, reason, cpu_percent, takes_work) in [
        ("quiet", &usual, &quiet(), NONE, None, 100, true),
        (
            "nobody can tell",
            &usual,
            &Facts { input: Input::Unknown, foreign_cpu: None, ..quiet() },
            NONE,
            None,
            100,
            true,
        ),
        ("limited", &half, &quiet(), NONE, None, 50, true),
        ("just idle enough", &usual, &idle(300), NONE, None, 100, true),
        ("not idle enough", &usual, &idle(299), NONE, Some("owner_active"), 0, false),
        ("in use, limited", &shared, &idle(0), NONE, Some("owner_active"), 30, true),
        ("there", &usual, &there, NONE, Some("owner_present"), 0, false),
        ("there, limited", &shared, &there, NONE, Some("owner_present"), 30, true),
        ("battery", &usual, &battery, NONE, Some("on_battery"), 0, false),
        ("battery allowed", &battery_is_fine, &battery, NONE, None, 100, true),
        ("battery while in use", &shared, &Facts { on_battery: true, ..idle(0) }, NONE, Some("on_battery"), 0, false),
        ("program", &usual, &steam, NONE, Some("program_runs"), 0, false),
        ("busy", &usual, &busy, NONE, Some("foreign_cpu"), 0, false),
        ("busy allowed", &cpu_is_fine, &busy, NONE, None, 100, true),
        ("full", &usual, &full, NONE, Some("disk_full"), 100, false),
        (
            "full while in use, limited",
            &shared,
            &Facts { disk_room: 0.0, ..idle(0) },
            NONE,
            Some("owner_active"),
            30,
            false,
        ),
        ("day", &nights, &quiet(), NONE, Some("outside_hours"), 0, false),
        ("paused", &usual, &quiet(), PAUSED, Some("paused_by_user"), 0, false),
        ("finishing", &usual, &quiet(), FINISH, Some("finishing"), 100, false),
        ("finishing at half speed", &half, &quiet(), FINISH, Some("finishing"), 50, false),
        ("finishing while in use", &usual, &idle(0), FINISH, Some("owner_active"), 0, false),
        ("finishing while in use, limited", &shared, &idle(0), FINISH, Some("owner_active"), 30, false),
        ("all, paused", &nights, &all, PAUSED, Some("paused_by_user"), 0, false),
        ("all, by day", &nights, &all, NONE, Some("outside_hours"), 0, false),
        ("all", &usual, &all, NONE, Some("on_battery"), 0, false),
        ("all but battery", &battery_is_fine, &all, NONE, Some("program_runs"), 0, false),
        (
            "there and busy",
            &usual,
            &Facts { program: None, on_battery: false, ..all.clone() },
            NONE,
            Some("owner_present"),
            0,
            false,
        ),
    ] {
        let judgement = judged(settings, facts, orders);
        assert_eq!(judgement.reason.as_ref().map(Reason::code), reason, "{name}");
        assert_eq!((judgement.cpu_percent, judgement.takes_work), (cpu_percent, takes_work), "{name}");
    }
}

#[test]
fn a_machine_is_in_use_whatever_else_keeps_tasks_from_running() {
    let mut policy = Policy::new(at(0));
    let usual = OwnerSettings::default();
    assert!(!policy.judge(at(1), &usual, &quiet(), NONE) && !policy.is_in_use());
    assert!(policy.judge(at(2), &usual, &quiet(), PAUSED) && !policy.is_in_use());
    for (second, input, in_use) in [
        (3, Input::Idle(Duration::from_secs(299)), true),
        (4, Input::Idle(Duration::from_secs(300)), false),
        (5, Input::Present, true),
        (6, Input::Unknown, false),
    ] {
        let facts = Facts { input, ..quiet() };
        assert!(policy.judge(at(second), &usual, &facts, PAUSED), "{input:?}");
        assert!(!policy.judge(at(second), &usual, &facts, PAUSED), "told once: {input:?}");
        assert_eq!(policy.is_in_use(), in_use, "{input:?}");
        assert_eq!(policy.judgement().since, at(2), "it is paused since then");
    }
}

#[test]
fn since_is_when_the_reason_or_the_limit_changed() {
    let usual = OwnerSettings::default();
    let mut policy = Policy::new(at(0));
    assert!(!policy.judge(at(1), &usual, &quiet(), NONE), "as it was assumed");
    assert_eq!(policy.judgement().since, at(0));
    let active = Facts { input: Input::Idle(Duration::from_secs(3)), ..quiet() };
    assert!(policy.judge(at(2), &usual, &active, NONE));
    assert!(!policy.judge(at(3), &usual, &active, NONE));
    assert_eq!(policy.judgement().since, at(2));
    let battery = Facts { on_battery: true, ..active.clone() };
    assert!(policy.judge(at(4), &usual, &battery, NONE), "another reason is news");
    assert_eq!(policy.judgement().since, at(4));
    let shared = settings(|settings| settings.in_use_cpu_percent = 30);
    policy.judge(at(5), &usual, &active, NONE);
    assert!(policy.judge(at(6), &shared, &active, NONE), "so is another limit");
    assert_eq!(policy.judgement().since, at(6));
}

#[test]
fn the_processor_is_released_at_once_and_used_only_after_a_quiet_while() {
    let usual = OwnerSettings::default();
    let mut policy = Policy::new(at(0));
    let mut is_busy = |seconds, share| {
        let facts = Facts { foreign_cpu: share, ..quiet() };
        policy.judge(at(seconds), &usual, &facts, NONE);
        policy.judgement().reason == Some(Reason::ForeignCpu)
    };
    // 15 % is 0.6 of the 25 % that are allowed.
    for (seconds, share, expected) in [
        (0, None, false),
        (1, Some(0.25), false),
        (2, Some(0.251), true),
        (3, Some(0.0), true),
        (32, Some(0.0), true),
        (33, Some(0.0), false),
        (34, Some(0.24), false),
        (35, Some(0.9), true),
        (36, Some(0.1), true),
        (60, Some(0.16), true),
        (66, Some(0.1), true),
        (70, None, true),
        (95, Some(0.15), true),
        (96, Some(0.15), false),
    ] {
        assert_eq!(is_busy(seconds, share), expected, "at {seconds} s with {share:?}");
    }
}

#[test]
fn a_full_disk_has_to_have_room_again_before_tasks_begin() {
    let (mut policy, usual) = (Policy::new(at(0)), OwnerSettings::default());
    for (room, takes_work) in [(0.06, true), (0.04, false), (0.09, false), (0.11, true), (0.06, true)] {
        policy.judge(at(1), &usual, &Facts { disk_room: room, ..quiet() }, NONE);
        assert_eq!(policy.judgement().takes_work, takes_work, "{room}");
    }
}
