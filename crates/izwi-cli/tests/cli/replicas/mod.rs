//! Three servers behind a balancer with the configurations of `assets/deploy/`: listeners while one server is killed and one
//! is drained.
//!
//! The balancers are the real programs; where one is not installed, its test says so and is not run. Nothing here asserts a
//! time: the streams are longer than what may be sent ahead of their clients.

#![allow(clippy::panic, reason = "a test fails by panicking")]

mod balancer;
mod listener;
mod servers;
mod voices;

use std::time::Duration;

use balancer::Balancer;
use listener::Listener;
use servers::{Replica, Replicas};

/// How long a condition may take to hold.
const GUARD: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < GUARD, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Listeners on every replica, two on each, which have heard the beginning of the same text.
fn listeners(balancer: &Balancer) -> Vec<Vec<Listener>> {
    let mut found: Vec<(String, Vec<Listener>)> = Vec::new();
    for _ in 0..24 {
        let listener = Listener::open(balancer.port, None);
        match found.iter_mut().find(|(name, _)| *name == listener.instance()) {
            Some((_, of_replica)) => of_replica.push(listener),
            None => found.push((listener.instance(), vec![listener])),
        }
        if found.len() == 3 && found.iter().all(|(_, of_replica)| of_replica.len() >= 2) {
            break;
        }
    }
    assert!(found.len() == 3, "new sessions reached {} replicas", found.len());
    found.sort_by(|a, b| a.0.cmp(&b.0));
    for listener in found.iter_mut().flat_map(|(_, of_replica)| of_replica.iter_mut().take(2)) {
        listener.speak();
    }
    for listener in found.iter_mut().flat_map(|(_, of_replica)| of_replica.iter_mut().take(2)) {
        listener.hear(3);
    }
    found.into_iter().map(|(_, of_replica)| of_replica).collect()
}

/// What both balancers must do.
fn survives(balancer: &Balancer, replicas: &mut Replicas) {
    let mut whole = Listener::open(balancer.port, None);
    whole.speak();
    whole.hear_all();
    assert_eq!(whole.close_code, Some(1000));
    assert!(whole.audio.len() > servers::LONG, "{} bytes", whole.audio.len());

    let mut heard = listeners(balancer);
    let names: Vec<String> = heard.iter().map(|of_replica| of_replica[0].instance()).collect();
    let [killed, drained, live] = [0, 1, 2].map(|at| names[at].clone());
    let mut on_live = heard.pop().unwrap();
    let mut on_drained = heard.pop().unwrap();
    let mut on_killed = heard.pop().unwrap();

    // A connection is lost on a live replica: the session continues there through the balancer.
    on_live[1].lose();
    on_live[1].resume(balancer.port).unwrap();
    // One is lost just before its replica drains.
    on_drained[1].lose();
    eventually("the replica to notice", || replicas.named(&drained).metric("izwi_sessions_detached") == 1.0);
    replicas.named(&drained).terminate();
    replicas.named(&killed).kill();
    eventually("the replica to drain", || replicas.named(&drained).is_draining());

    // New sessions and requests find the live replica, also before the balancer knows of the others.
    for _ in 0..6 {
        assert_eq!(Listener::open(balancer.port, None).instance(), live);
        let (status, instance) = balancer.request("GET", "/v1/models", "");
        assert_eq!((status, instance.as_deref()), (200, Some(live.as_str())));
    }
    let speech = r#"{"model": "tts-1", "input": "Short.", "response_format": "pcm"}"#;
    for _ in 0..3 {
        let (status, instance) = balancer.request("POST", "/v1/audio/speech", speech);
        assert_eq!((status, instance.as_deref()), (200, Some(live.as_str())));
    }
    // The name of a draining replica leads there only for those who come back.
    let models = balancer.request("GET", &format!("/v1/models?instance={drained}"), "");
    assert_eq!(models, (200, Some(live.clone())));
    let mut newcomer = Listener::open(balancer.port, Some(&drained));
    assert_eq!(newcomer.refusal(), "draining");

    // The session of the draining replica continues there.
    on_drained[1].resume(balancer.port).unwrap();
    // Those of the killed one are gone; another replica says so, and takes a new session.
    for listener in &mut on_killed[..2] {
        listener.hear_break();
        assert_eq!(listener.resume(balancer.port).unwrap_err(), "resume_refused");
    }
    let mut anew = Listener::open(balancer.port, None);
    anew.speak();
    anew.hear_all();
    assert_eq!((anew.instance(), anew.audio == whole.audio), (live.clone(), true));

    // All others hear what they would have heard undisturbed.
    for (listener, code) in
        on_drained[..2].iter_mut().zip([1001; 2]).chain(on_live[..2].iter_mut().zip([1000; 2]))
    {
        listener.hear_all();
        assert_eq!(listener.audio.len(), whole.audio.len(), "{}", listener.instance());
        assert!(listener.audio == whole.audio, "other audio from {}", listener.instance());
        assert_eq!(listener.close_code, Some(code), "{}", listener.instance());
    }
    drop((newcomer, on_drained));
    assert!(replicas.named(&drained).ended(), "the drained replica ends by itself");
}

/// The first audio of a response passes the balancer while the rest is generated.
fn streams_responses(balancer: &Balancer, replica: &Replica) {
    let mut request = servers::options();
    request["response_format"] = "pcm".into();
    request["model"] = "tts-1".into();
    request["input"] = servers::TEXT.into();
    let length = balancer.hear_response(&request.to_string(), || {
        assert!(replica.open_requests() > 0, "the response had ended when its first audio came");
    });
    assert!(length > servers::LONG / 2, "{length} bytes");
}

#[test]
fn listeners_behind_haproxy_survive_a_killed_and_a_drained_replica() {
    let Some(haproxy) = balancer::find("haproxy") else { return };
    let mut replicas = Replicas::start(3, servers::SPEAKS);
    let balancer = Balancer::haproxy(&haproxy, &replicas);
    survives(&balancer, &mut replicas);
}

#[test]
fn listeners_behind_nginx_survive_a_killed_and_a_drained_replica() {
    let Some(nginx) = balancer::find("nginx") else { return };
    let mut replicas = Replicas::start(3, servers::SPEAKS);
    let balancer = Balancer::nginx(&nginx, &replicas);
    survives(&balancer, &mut replicas);
}

#[test]
fn balancers_pass_audio_on_as_it_comes() {
    let replicas = Replicas::start(1, servers::SPEAKS);
    if let Some(haproxy) = balancer::find("haproxy") {
        streams_responses(&Balancer::haproxy(&haproxy, &replicas), replicas.first());
    }
    if let Some(nginx) = balancer::find("nginx") {
        streams_responses(&Balancer::nginx(&nginx, &replicas), replicas.first());
    }
}
