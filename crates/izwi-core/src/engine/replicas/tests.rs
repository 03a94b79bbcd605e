//! The choice of a replica, and the status of all of them.

use super::*;

fn ready(first_sound_ms: u64, open: usize) -> EngineStatus {
    let outlook = Outlook {
        first_sound: Duration::from_millis(first_sound_ms),
        step_with_another: Duration::from_millis(10 * (open as u64 + 1)),
        ..Outlook::default()
    };
    EngineStatus { state: EngineState::Ready, running: open, outlook, ..EngineStatus::default() }
}

#[tokio::test(start_paused = true)]
async fn the_replica_that_is_heard_first_comes_first() {
    let now = Instant::now();
    let (fast, slow) = (ready(100, 9), ready(800, 0));
    assert!(rank(&fast, 0, true, 0, now) < rank(&slow, 0, true, 0, now));
    // Seven are on their way to the fast one.
    assert!(rank(&fast, 8, true, 0, now) > rank(&slow, 0, true, 0, now));
    // Work that nobody waits for goes where its steps come soonest.
    assert!(rank(&fast, 0, false, 0, now) > rank(&slow, 0, false, 0, now));
    let mut full = fast.clone();
    full.outlook.refuses_until = Some(now + Duration::from_secs(1));
    assert!(rank(&full, 0, true, 0, now) > rank(&slow, 0, true, 0, now));
    assert!(rank(&full, 0, true, 0, now + Duration::from_secs(2)) < rank(&slow, 0, true, 0, now));
    // A thousand cached positions save 2 s on the slow one; no cached prompt outweighs a refusal.
    let mut learned = slow.clone();
    learned.outlook.prompt_token = Duration::from_millis(2);
    assert!(rank(&learned, 0, true, 1_000, now) < rank(&fast, 0, true, 0, now));
    assert!(rank(&learned, 0, true, 300, now) > rank(&fast, 0, true, 0, now));
    assert!(rank(&full, 0, true, 1_000, now) > rank(&slow, 0, true, 0, now));
    let unknown = ready(0, 0);
    assert!(rank(&unknown, 0, true, 16, now) < rank(&unknown, 0, true, 0, now));
    let starting = EngineStatus::default();
    assert!(rank(&starting, 0, true, 0, now) > rank(&slow, 0, true, 0, now));
}

#[test]
fn the_model_works_while_one_replica_does() {
    let dead = EngineStatus { state: EngineState::Dead("lost".to_owned()), ..EngineStatus::default() };
    let stopped = EngineStatus { state: EngineState::Stopped, ..EngineStatus::default() };
    let state = |replicas: &[&EngineStatus]| {
        let named: Vec<_> = replicas.iter().map(|status| ("cpu", *status)).collect();
        merged_state(&named)
    };
    assert_eq!(state(&[&dead, &ready(1, 0)]), EngineState::Ready);
    assert_eq!(state(&[&EngineStatus::default(), &dead]), EngineState::Starting);
    assert_eq!(state(&[&dead, &stopped]), EngineState::Stopped);
    assert_eq!(state(&[&dead, &dead]), EngineState::Dead("cpu: lost; cpu: lost".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn the_whole_refuses_only_where_all_replicas_do() {
    let at = Instant::now() + Duration::from_secs(3);
    let full = |seconds| {
        let mut status = EngineStatus { streams: vec![(SequenceId(1), at)], ..ready(50, 2) };
        status.outlook.refuses_until = Some(at + Duration::from_secs(seconds));
        status
    };
    let of = |replicas: [&EngineStatus; 2]| merged(&replicas.map(|status| ("cpu", status)));
    assert_eq!(of([&full(0), &ready(90, 1)]).outlook.refuses_until, None);
    let both = of([&full(4), &full(0)]);
    assert_eq!((both.outlook.refuses_until, both.running), (Some(at), 4));
    assert_eq!(
        both.streams.iter().map(|(id, _)| id.0).collect::<Vec<_>>(),
        [2, 3],
        "each has its own number"
    );
    let lost = EngineStatus { state: EngineState::Dead("lost".to_owned()), ..EngineStatus::default() };
    assert_eq!(
        of([&full(4), &lost]).outlook.refuses_until,
        Some(at + Duration::from_secs(4)),
        "a lost one accepts nothing"
    );
}

#[test]
fn an_answer_fails_where_all_replicas_failed() {
    let stopped = || EngineError::Stopped("x".to_owned());
    assert_eq!(whole(vec![Err(stopped()), Ok(7)]), Ok(vec![7]));
    assert_eq!(whole::<u8>(vec![Err(stopped()), Err(stopped())]), Err(stopped()));
    assert_eq!(pause(&stopped()), Duration::MAX);
    assert!(is_of_replica(&stopped()) && !is_of_replica(&EngineError::Draining));
}
