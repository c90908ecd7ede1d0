//! Questions about running tasks: they reach the agent with the asker's name, and are answered or refused.

use super::*;
use crate::LivePlace;

fn ask(number: u64) -> LiveAsk {
    let place = LivePlace { index: number, run: 1, stdout: 2, stderr: 3 };
    LiveAsk { bag: [9; 32], tasks: vec![(0, number)], seen: vec![place] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_reaches_the_agent_also_where_nobody_was_connected() {
    let (a, b) = (Node::start().await, Node::start().await);
    let mut questions = b.net.questions().expect("nobody has them");
    assert!(b.net.questions().is_none(), "they are one's alone");
    let asker = a.contact.peer;
    let answering = tokio::spawn(async move {
        let LiveQuestion { from, ask: asked, reply } = questions.recv().await.expect("somebody asks");
        assert_eq!((from, asked), (asker, ask(7)));
        reply.send(LiveTold { tasks: Some(Vec::new()) }).expect("it waits");
        // The second is not answered.
        drop(questions.recv().await.expect("somebody asks"));
        questions
    });
    assert_eq!(a.net.live(&b.contact, ask(7)).await, Ok(LiveTold { tasks: Some(Vec::new()) }));
    assert_eq!(a.net.live(&b.contact, ask(8)).await, Err(LiveError::Busy));
    drop(answering.await.expect("it ends"));
    assert_eq!(a.net.live(&b.contact, ask(9)).await, Err(LiveError::Busy), "the agent takes none any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_in_one_question_is_refused_and_who_is_away_is_told() {
    let (a, b) = (Node::start().await, Node::start().await);
    let mut questions = b.net.questions().expect("nobody has them");
    let too_many = LiveAsk { tasks: vec![(0, 0); LIVE_TASKS_MAX + 1], ..ask(1) };
    assert_eq!(a.net.live(&b.contact, too_many).await, Err(LiveError::Busy));
    assert!(questions.try_recv().is_err(), "the agent does not hear of it");
    let nobody = Contact { peer: PeerId([5; 32]), address: "/ip4/127.0.0.1/tcp/1".into(), ..b.contact.clone() };
    assert_eq!(a.net.live(&nobody, ask(1)).await, Err(LiveError::Unreachable));
}
