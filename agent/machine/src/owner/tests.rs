use super::*;
use crate::policy::Pause;
use crate::work::WorkOrder;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn facts(input: Input) -> Facts {
    let local = LocalTime { weekday: 4, minute: 12 * 60 };
    Facts { input, on_battery: false, foreign_cpu: Some(0.0), program: None, disk_room: 1.0, local }
}

fn quiet() -> Facts {
    facts(Input::Idle(Duration::from_secs(3600)))
}

/// What the driver and the peer are told, in this order, but for judgements.
fn told(
    owner: &mut Owner,
    say: impl FnOnce(&mut Owner, &mut Vec<Effect>) -> Vec<PeerEvent>,
) -> (Vec<Effect>, Vec<String>) {
    let (mut effects, stood_still) = (Vec::new(), owner.workers_stand_still());
    let told = say(owner, &mut effects);
    if owner.workers_stand_still() != stood_still {
        // The machine does so first.
        effects.insert(0, Effect::Work(if stood_still { WorkOrder::ThawAll } else { WorkOrder::FreezeAll }));
    }
    effects.retain(|effect| !matches!(effect, Effect::Judged(_)));
    (effects, told.iter().map(|event| format!("{event:?}")).collect())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const FREEZE: Effect = Effect::Work(WorkOrder::FreezeAll);
const THAW: Effect = Effect::Work(WorkOrder::ThawAll);
const STANDS_STILL: &str = "OwnerReturned { stands_still: true }";
const GOES_ON: &str = "OwnerReturned { stands_still: false }";

#[test]
fn the_owner_who_comes_freezes_the_workers_and_who_gives_no_input_for_long_enough_thaws_them() {
    let mut owner = Owner::new(OwnerSettings::default(), at(0));
    let mut effects = Vec::new();
    owner.sense(facts(Input::Idle(Duration::from_secs(1))), at(10), &mut effects);
    assert_eq!(effects, [Effect::Judged(owner.judgement().clone())]);
    assert!(owner.workers_stand_still());
    assert!(owner.is_in_use() && owner.judgement().stands_still());
    assert_eq!(
        told(&mut owner, |owner, effects| owner.sense(facts(Input::Present), at(20), effects)).1,
        [STANDS_STILL]
    );
    assert_eq!(owner.deadline(), None, "time alone does not tell that the owner leaves");
    let left =
        |owner: &mut Owner, effects: &mut Vec<Effect>| owner.sense(facts(Input::Idle(Duration::ZERO)), at(60), effects);
    assert_eq!(told(&mut owner, left), (vec![], words(&[STANDS_STILL])));
    // Five minutes after the last input, though nobody looks again.
    assert_eq!(owner.deadline(), Some(at(360)));
    assert_eq!(told(&mut owner, |owner, effects| owner.wake(at(359), effects)), (vec![], vec![]));
    let (effects, events) = told(&mut owner, |owner, effects| owner.wake(at(360), effects));
    assert_eq!((effects, events), (vec![THAW], words(&["OwnerLeft"])));
    assert_eq!((owner.is_in_use(), owner.deadline()), (false, None));
}

#[test]
fn under_a_limit_tasks_run_for_a_part_of_each_second() {
    let settings = OwnerSettings { in_use_cpu_percent: 30, ..OwnerSettings::default() };
    let mut owner = Owner::new(settings, at(0));
    let (effects, events) = told(&mut owner, |owner, effects| owner.sense(facts(Input::Present), at(1), effects));
    assert_eq!((effects, events), (vec![FREEZE], words(&["OwnerLeft"])));
    let mut turns = Vec::new();
    for _ in 0..4 {
        let now = owner.deadline().expect("the cycle goes on");
        let (effects, events) = told(&mut owner, |owner, effects| owner.wake(now, effects));
        assert_eq!(events, words(&[]), "the peer does not hear of it");
        turns.push((now.since(at(1)).as_millis(), effects));
    }
    let (freeze, thaw) = (vec![FREEZE], vec![THAW]);
    assert_eq!(turns, [(700, thaw.clone()), (1000, freeze.clone()), (1700, thaw), (2000, freeze)]);
    let (effects, _) = told(&mut owner, |owner, effects| owner.sense(quiet(), at(4), effects));
    assert_eq!((effects, owner.deadline()), (vec![THAW], None));
}

#[test]
fn a_pause_freezes_first_tasks_too_and_ends_by_itself() {
    let mut owner = Owner::new(OwnerSettings::default(), at(0));
    told(&mut owner, |owner, effects| owner.sense(quiet(), at(0), effects));
    let pause = Some(Pause { until: Some(at(60)) });
    let orders = Orders { pause, finish: false };
    let (effects, events) = told(&mut owner, |owner, effects| owner.order(orders, at(1), effects));
    assert_eq!(effects, [FREEZE, Effect::FreezeMeasurer, Effect::KeepPause(pause)]);
    assert_eq!(events, words(&[STANDS_STILL]));
    assert_eq!(owner.deadline(), Some(at(60)));
    let (mut effects, events) = told(&mut owner, |owner, effects| owner.wake(at(60), effects));
    effects.sort_by_key(|effect| matches!(effect, Effect::KeepPause(_)));
    assert_eq!(effects, [THAW, Effect::ThawMeasurer, Effect::KeepPause(None)]);
    assert_eq!((events, owner.orders()), (words(&["OwnerLeft"]), Orders::default()));
    // Whoever is there may have submitted what is measured.
    let (effects, _) = told(&mut owner, |owner, effects| owner.sense(facts(Input::Present), at(61), effects));
    assert_eq!(effects, [FREEZE]);
}

#[test]
fn a_full_disk_and_the_order_to_finish_hand_back_what_has_not_begun() {
    let mut owner = Owner::new(OwnerSettings::default(), at(0));
    let full = Facts { disk_room: 0.0, ..quiet() };
    let (effects, events) = told(&mut owner, |owner, effects| owner.sense(full, at(1), effects));
    assert_eq!((effects, events), (vec![], words(&[GOES_ON, "Vacate"])));
    told(&mut owner, |owner, effects| owner.sense(quiet(), at(2), effects));
    let finish = Orders { pause: None, finish: true };
    let (_, events) = told(&mut owner, |owner, effects| owner.order(finish, at(3), effects));
    assert_eq!(events.first().map(String::as_str), Some(GOES_ON));
    assert!(events.contains(&"Vacate".to_owned()), "{events:?}");
    // While the owner is there, what has begun keeps its vacate time; what has not goes at the order.
    let (_, events) = told(&mut owner, |owner, effects| owner.sense(facts(Input::Present), at(4), effects));
    assert_eq!(events, words(&[STANDS_STILL]));
    let (_, events) = told(&mut owner, |owner, effects| owner.order(finish, at(5), effects));
    assert_eq!(events, words(&["Vacate"]));
}

#[test]
fn settings_count_at_once_and_the_peer_hears_of_another_vacate_time() {
    let mut owner = Owner::new(OwnerSettings::default(), at(0));
    told(&mut owner, |owner, effects| owner.sense(facts(Input::Idle(Duration::from_secs(100))), at(1), effects));
    let settings = OwnerSettings { idle: Duration::from_secs(60), ..OwnerSettings::default() };
    let (effects, events) = told(&mut owner, |owner, effects| owner.set(settings.clone(), at(2), effects));
    assert_eq!((effects, events), (vec![THAW], words(&["OwnerLeft"])));
    let settings = OwnerSettings { vacate: Duration::from_secs(7), ..settings };
    let (effects, events) = told(&mut owner, |owner, effects| owner.set(settings.clone(), at(3), effects));
    assert_eq!((effects, events), (vec![], words(&["VacatesAfter(7s)"])));
    let (_, events) = told(&mut owner, |owner, effects| owner.set(settings, at(4), effects));
    assert_eq!(events, words(&[]));
}
