//! Where the Wyoming port may listen.

use std::io::{BufRead as _, BufReader};

use super::{Izwi, refused};

#[test]
fn an_open_wyoming_port_has_a_switch_of_its_own_and_is_warned_of() {
    let izwi = Izwi::alone();
    let serve = ["serve", "--no-pull", "--port", "0", "--wyoming", "0.0.0.0:0"];
    refused(&izwi.run(&serve), 1, &["wyoming has no key", "--wyoming-open"]);
    let open = [&serve[..], &["--wyoming-open"]].concat();
    // The switch opens no other port.
    refused(&izwi.run(&[&open[..], &["--host", "0.0.0.0"]].concat()), 1, &["api key", "--insecure"]);

    let mut child = izwi.command(&open).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = Vec::new();
    while told.last().is_none_or(|line: &String| !line.starts_with("warning: ")) {
        told.push(lines.next().expect("the server tells where it listens").unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let is = |start: &str| told.iter().any(|line| line.starts_with(start));
    assert!(
        is("izwi serves on http://127.0.0.1:") && is("izwi serves wyoming on tcp://0.0.0.0:"),
        "{told:?}"
    );
    assert!(told.last().unwrap().contains("the Wyoming port has no key"), "{told:?}");
}
