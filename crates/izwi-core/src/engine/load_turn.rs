//! The turn in which a model is loaded: bulk work of the CPU, which reads and packs the weights wherever the model runs
//! then. It lets live streams go first between two tensors.
//!
//! Must not know models.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use izwi_types::DeviceChoice;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::executor::with_yields;
use super::qos::arbiter::{DeviceArbiter, SharedTurn, TurnRequest};

/// How long a tensor is expected to take at most.
const PIECE: Duration = Duration::from_millis(60);

/// Calls `load` in a turn of `cpu` that it gives up between tensors while others are more urgent. Blocks. On a runtime of
/// one thread it calls it at once: those that it waits for could not go on meanwhile.
pub(super) fn in_turn<T: Send>(cpu: &Arc<DeviceArbiter>, load: impl FnOnce() -> T + Send) -> T {
    let runtime = Handle::try_current().ok();
    let runs_beside = |runtime: &Handle| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread;
    let Some(runtime) = runtime.filter(runs_beside) else { return load() };
    let in_turn = move || {
        let _entered = runtime.enter();
        let member = cpu.join();
        // Expected to end with its first piece: others need not wait for more.
        let request =
            TurnRequest { predicted: PIECE, expected: PIECE, piece: Some(PIECE), ..TurnRequest::default() };
        let turn = SharedTurn::new(&member, runtime.block_on(member.turn(request)));
        let yielding = turn.clone();
        let cpu = DeviceChoice::Cpu.to_string();
        let loaded = with_yields(&cpu, move || yielding.block_at_yield_point(), load);
        turn.end();
        loaded
    };
    // A thread of the runtime may not wait for its own tasks; one beside it may.
    std::thread::scope(|scope| scope.spawn(in_turn).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::engine::executor::yield_point;
    use crate::engine::qos::arbiter::Due;

    const LONG: Duration = Duration::from_secs(60);

    fn live() -> TurnRequest {
        let due = Due { at: Instant::now() + Duration::from_millis(20), work: Duration::ZERO };
        TurnRequest {
            due: Some(due),
            is_live: true,
            is_checked: true,
            predicted: PIECE,
            ..TurnRequest::default()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_load_waits_for_a_stream_and_lets_streams_go_first_between_tensors() {
        let cpu = DeviceArbiter::new();
        let streams = cpu.join();
        let turn = streams.turn(live()).await;
        let (tensors, taken) = mpsc::channel();
        let (arbiter, (done, is_done)) = (Arc::clone(&cpu), mpsc::channel::<()>());
        let loading = std::thread::spawn({
            let runtime = Handle::current();
            move || {
                let _entered = runtime.enter();
                in_turn(&arbiter, move || {
                    // Takes tensors until a stream had its turn.
                    while is_done.try_recv().is_err() {
                        yield_point();
                        tensors.send(()).unwrap();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    "loaded"
                })
            }
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(taken.try_recv().is_err(), "it begins while a stream has the device");
        drop(turn);
        let first = tokio::task::spawn_blocking(move || taken.recv_timeout(LONG).map(|()| taken));
        let _taken = first.await.unwrap().expect("it begins once the device is free");
        let turn = timeout(LONG, streams.turn(live())).await.expect("a stream goes first between tensors");
        done.send(()).unwrap();
        drop(turn);
        assert_eq!(tokio::task::spawn_blocking(|| loading.join()).await.unwrap().unwrap(), "loaded");
        assert!(timeout(LONG, streams.turn(live())).await.is_ok(), "the device is free");
    }

    #[tokio::test]
    async fn a_load_on_the_only_thread_of_a_runtime_does_not_wait() {
        let cpu = DeviceArbiter::new();
        let _turn = cpu.join().turn(live()).await;
        assert_eq!(in_turn(&cpu, || 3), 3);
    }
}
