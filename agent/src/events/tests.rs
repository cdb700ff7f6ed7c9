use super::*;
use crate::group::ExitStatus;
use crate::observer::stage::Stage;
use crate::reason::StopCause;
use crate::supervisor::Input;
use crate::worker_event::WorkerEvent;
use alloc::vec;
use alloc::vec::Vec;

type Watch<'a> = &'a mut dyn FnMut(Instant, &Supervisor, Happened<'_>);

fn recorded(watchdog: Watched, play: impl FnOnce(&mut Stage<Watch<'_>>)) -> Vec<Value> {
    let mut events = Vec::new();
    let mut recorder = EventRecorder::new(EventFacts {
        run_id: "run-7".into(),
        rdzv_backend: "rdzv".into(),
        hostname: "n1".into(),
        entry_point: "train.py".into(),
        watchdog,
    });
    let mut watch = |now: Instant, machine: &Supervisor, happened: Happened<'_>| {
        recorder.observe(now, machine, happened, &mut |line| {
            assert!(!line.contains('\n'));
            events.push(serde_json::from_str(line).expect("JSON"));
        });
    };
    play(&mut Stage::new(3, &mut watch));
    events
}

/// Returns the state, and for a worker its rank and process ID.
fn brief(event: &Value) -> String {
    let metadata = &event["metadata"];
    let state = metadata["state"].as_str().expect("text");
    match &metadata["global_rank"] {
        Value::Null => state.to_owned(),
        rank => format!("{state} {rank} {}", metadata["worker_id"].as_str().expect("text")),
    }
}

fn life(stage: &mut Stage<Watch<'_>>) {
    stage.after(1, Input::Begin).meets(10).numbered(20).starts(30).exits(1000, 1, ExitStatus::Signal(9));
    stage
        .exits(3, 0, ExitStatus::Signal(15))
        .after(2, Input::Worker(WorkerEvent::Empty))
        .meets(10)
        .numbered(20)
        .starts(30);
    stage.exits(100, 0, ExitStatus::Code(0)).exits(100, 1, ExitStatus::Code(0));
    stage.after(0, Input::Worker(WorkerEvent::Empty)).parts(50).closes(5);
}

#[test]
fn a_life_with_a_restart() {
    let events = recorded(Watched::No, life);
    let wanted = [
        "RENDEZVOUS",
        "ASSIGN_WORKER_RANKS",
        "START 4 100",
        "START 5 101",
        "TERMINATED 4 100",
        "FAILED 5 101",
        "RENDEZVOUS",
        "ASSIGN_WORKER_RANKS",
        "START 4 110",
        "START 5 111",
        "SUCCEEDED 4 110",
        "SUCCEEDED 5 111",
        "SUCCEEDED",
    ];
    assert_eq!(events.iter().map(brief).collect::<Vec<_>>(), wanted);
}

#[test]
fn fields_are_pytorchs() {
    let mut events = recorded(Watched::No, life);
    let inner = |event: &mut Value| {
        let inner = event["metadata"]["metadata"].take();
        serde_json::from_str::<Value>(inner.as_str().expect("JSON in a text")).expect("JSON")
    };
    let failed = &mut events[5];
    let wanted = json!({
        "local_rank": [1], "role_rank": [3], "role_world_size": [5], "exit_code": [-9], "worker_pid": [101],
        "group_world_size": 3, "entry_point": "train.py",
    });
    assert_eq!(inner(failed), wanted);
    let raw_error = failed["metadata"]["raw_error"].take();
    let raw_error: Value = serde_json::from_str(raw_error.as_str().expect("JSON in a text")).expect("JSON");
    assert_eq!(raw_error["message"], "<NONE>");
    let wanted = json!({
        "name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0,
        "metadata": {
            "run_id": "run-7", "global_rank": 5, "group_rank": 1, "worker_id": "101", "role": "trainer",
            "hostname": "n1", "state": "FAILED", "total_run_time": 1, "rdzv_backend": "rdzv", "raw_error": null,
            "metadata": null, "agent_restarts": 0, "duration_ms": null,
        },
    });
    assert_eq!(*failed, wanted);
    assert_eq!(inner(&mut events[2])["worker_pid"], json!([100]), "of a START");
    let met = &mut events[0];
    assert_eq!(inner(met), json!({ "group_world_size": 3, "entry_point": "train.py" }));
    let about = |event: &Value| {
        let metadata = &event["metadata"];
        (event["source"].clone(), metadata["worker_id"].clone(), metadata["duration_ms"].as_f64())
    };
    assert_eq!(about(met), ("AGENT".into(), Value::Null, Some(10.0)));
    assert_eq!(about(&events[1]), ("AGENT".into(), Value::Null, Some(20.0)));
}

#[test]
fn who_is_stopped_is_terminated_and_who_was_never_started_ends_never() {
    let stopped = recorded(Watched::No, |stage| {
        stage.after(0, Input::Begin).meets(0).numbered(0).starts(0).exits(1, 0, ExitStatus::Code(0));
        stage.after(1, Input::Stop(StopCause::Signal(15))).exits(1, 1, ExitStatus::Signal(15));
        stage.after(0, Input::Worker(WorkerEvent::Empty)).closes(0);
    });
    assert_eq!(
        stopped[4..].iter().map(brief).collect::<Vec<_>>(),
        ["TERMINATED 4 100", "TERMINATED 5 101", "FAILED"]
    );
    let early = recorded(Watched::No, |stage| {
        stage.after(0, Input::Begin).meets(0).after(0, Input::Stop(StopCause::Requested)).closes(0);
    });
    assert_eq!(early.iter().map(brief).collect::<Vec<_>>(), ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "FAILED"]);
}

#[test]
fn the_watchdog_tells_of_itself() {
    let timer = ExpiredTimer {
        pid: 101,
        local_rank: Some(1),
        scope: "train.py#3".into(),
        expires: Duration::from_millis(1_700_000_000_500),
        span: Duration::from_secs(60),
        signal: 9,
    };
    let play = |stage: &mut Stage<Watch<'_>>| {
        stage.after(0, Input::Begin).meets(0).numbered(0).starts(0);
        stage.after(5, Input::Worker(WorkerEvent::TimerExpired(timer.clone()))).exits(
            1,
            1,
            ExitStatus::Signal(9),
        );
        stage.exits(0, 0, ExitStatus::Signal(15)).after(0, Input::Worker(WorkerEvent::Empty));
    };
    let events = recorded(Watched::ByTimers, play);
    let names: Vec<_> = events.iter().filter_map(|event| event["name"].as_str()).collect();
    let local: Vec<_> = names.iter().filter(|name| !name.starts_with("torchelastic")).copied().collect();
    assert_eq!(local, ["watchdog started", "timer expired", "kill worker process", "watchdog stopped"]);
    let expired = events.iter().find(|event| event["name"] == "timer expired").expect("it is there");
    assert_eq!(expired["metadata"]["state"], "RUNNING");
    let inner = expired["metadata"]["metadata"].as_str().expect("JSON in a text");
    let wanted = json!({
        "watchdog_event": "timer expired", "worker_pid": "101", "scope_id": "train.py#3",
        "expiration_time": "1700000000.5", "signal": "9",
    });
    assert_eq!(serde_json::from_str::<Value>(inner).expect("JSON"), wanted);
    // A worker whose timer expired has failed, although it ended while all were being stopped.
    let ends: Vec<_> = events.iter().map(brief).filter(|brief| brief.contains(" 10")).collect();
    assert_eq!(ends, vec!["START 4 100", "START 5 101", "TERMINATED 4 100", "FAILED 5 101"]);
    let silent = recorded(Watched::No, play);
    assert!(silent.iter().all(|event| event["name"].as_str().expect("text").starts_with("torchelastic")));
}
