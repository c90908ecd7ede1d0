//! How the control API reaches the task that owns the peer: questions over a bounded channel, one answer each.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_scheduler::Wish;
use tokio::sync::{mpsc, oneshot};

/// Why a question gets no answer. One sentence each; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such thing.
    #[error("{0}")]
    NotFound(String),
    /// More than one such thing.
    #[error("{0}")]
    Ambiguous(String),
    /// The question makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It does not fit the present state.
    #[error("{0}")]
    Conflict(String),
    /// Not now.
    #[error("{0}")]
    Unavailable(String),
}

/// Which results of a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Page {
    /// Of the tasks from this one on.
    pub from: u64,
    /// So many at most.
    pub most: u64,
}

impl Page {
    /// All of them.
    pub const ALL: Self = Self { from: 0, most: u64::MAX };
}

impl Default for Page {
    fn default() -> Self {
        Self::ALL
    }
}

/// Which tasks of a bag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskQuery {
    /// Of the tasks from this one on.
    pub from: u64,
    /// So many at most.
    pub most: u64,
    /// In one of these states.
    pub states: Vec<idlewood_api::TaskState>,
}

/// Which machines of the grid.
#[derive(Clone, Debug)]
pub struct MachinesQuery {
    /// From this place of the line on.
    pub first: u64,
    /// In one of these states; none: in any.
    pub states: Vec<idlewood_api::MachineState>,
    /// Whose name, or id, matches.
    pub name: Option<glob::Pattern>,
}

/// The way back to whoever asked.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// A question, or an order.
#[derive(Debug)]
pub(crate) enum Command {
    Question(Question),
    Reading(Reading),
    Machines(MachinesQuery, Reply<idlewood_api::Machines>),
    Bag(BagOrder),
    Live(LiveQuestion),
    Endless(EndlessOrder),
    Owner(OwnerOrder),
}

/// A question that is answered at once.
#[derive(Debug)]
pub(crate) enum Question {
    Status(Reply<idlewood_api::Status>),
    Peers(Reply<idlewood_api::Peers>),
    Names(Reply<BTreeMap<String, String>>),
    Bags(idlewood_api::BagsWanted, Reply<Vec<idlewood_api::Bag>>),
    Bag(String, Reply<idlewood_api::BagDetail>),
}

/// A question about a bag whose answer is read from the disk.
#[derive(Debug)]
pub(crate) enum Reading {
    Results(String, Page, Reply<Vec<idlewood_api::TaskResult>>),
    Tasks(String, TaskQuery, Reply<idlewood_api::Tasks>),
    Output(String, u64, Reply<Result<Vec<u8>, blake3::Hash>>),
    Receipts(String, Reply<Vec<idlewood_api::Receipt>>),
    Ticket(String, bool, Reply<idlewood_api::Ticket>),
}

/// What running tasks of a bag have written.
#[derive(Debug)]
pub(crate) struct LiveQuestion {
    pub(crate) id: String,
    pub(crate) request: idlewood_api::LiveRequest,
    pub(crate) reply: Reply<idlewood_api::Live>,
}

/// An order about a bag of this machine.
#[derive(Debug)]
pub(crate) enum BagOrder {
    Submit(Box<idlewood_api::SubmitRequest>, Reply<idlewood_api::Bag>),
    Cancel(String, Reply<idlewood_api::Bag>),
    Wish(String, Wish, Reply<idlewood_api::Bag>),
    Rerun(String, Option<Vec<u64>>, Reply<idlewood_api::Bag>),
    Remove(String, Reply<idlewood_api::Bag>),
}

/// An order about an endless bag of this machine.
#[derive(Debug)]
pub(crate) enum EndlessOrder {
    Lines(String, idlewood_api::LinesRequest, Reply<idlewood_api::Bag>),
    Close(String, Reply<idlewood_api::Bag>),
    Drain(String, Vec<(u64, u64)>, Reply<idlewood_api::Bag>),
}

/// An order of the owner's.
#[derive(Debug)]
pub(crate) enum OwnerOrder {
    Pause(Option<Duration>, Reply<idlewood_api::Status>),
    Resume(Reply<idlewood_api::Status>),
    Finish(Reply<idlewood_api::Status>),
    Restart(Reply<idlewood_api::Status>),
    LeaveGrid(Reply<idlewood_api::Status>),
}

impl From<Question> for Command {
    fn from(question: Question) -> Self {
        Self::Question(question)
    }
}

impl From<Reading> for Command {
    fn from(reading: Reading) -> Self {
        Self::Reading(reading)
    }
}

impl From<BagOrder> for Command {
    fn from(order: BagOrder) -> Self {
        Self::Bag(order)
    }
}

impl From<LiveQuestion> for Command {
    fn from(question: LiveQuestion) -> Self {
        Self::Live(question)
    }
}

impl From<EndlessOrder> for Command {
    fn from(order: EndlessOrder) -> Self {
        Self::Endless(order)
    }
}

impl From<OwnerOrder> for Command {
    fn from(order: OwnerOrder) -> Self {
        Self::Owner(order)
    }
}

/// Answers a question. Whoever asked may be gone, which is fine.
pub(crate) fn answer<T>(reply: Reply<T>, result: Result<T, Refusal>) {
    if reply.send(result).is_err() {
        tracing::debug!("whoever asked is gone");
    }
}

/// Asks the agent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    commands: mpsc::Sender<Command>,
}

impl NodeHandle {
    pub(crate) fn new(commands: mpsc::Sender<Command>) -> Self {
        Self { commands }
    }

    async fn ask<T, C: Into<Command>>(&self, command: impl FnOnce(Reply<T>) -> C) -> Result<T, Refusal> {
        let gone = || Refusal::Unavailable("the agent is shutting down; start it again".to_owned());
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply).into()).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// What this machine does, and what it knows of the grid.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] while the agent shuts down; likewise below.
    pub async fn status(&self) -> Result<idlewood_api::Status, Refusal> {
        self.ask(Question::Status).await
    }

    /// This machine's place in the tree.
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn peers(&self) -> Result<idlewood_api::Peers, Refusal> {
        self.ask(Question::Peers).await
    }

    /// What machines are called that this one has to do with, by peer id.
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn names(&self) -> Result<BTreeMap<String, String>, Refusal> {
        self.ask(Question::Names).await
    }

    /// The machines of the grid on a part of the line; takes seconds where some do not answer.
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn machines(&self, query: MachinesQuery) -> Result<idlewood_api::Machines, Refusal> {
        self.ask(|reply| Command::Machines(query, reply)).await
    }

    /// The bags submitted from this machine, newest first.
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn bags(&self, wanted: idlewood_api::BagsWanted) -> Result<Vec<idlewood_api::Bag>, Refusal> {
        self.ask(|reply| Question::Bags(wanted, reply)).await
    }

    /// One of them, by a unique prefix of its id, or `last`.
    ///
    /// # Errors
    /// Also [`Refusal::NotFound`] and [`Refusal::Ambiguous`].
    pub async fn bag(&self, id: &str) -> Result<idlewood_api::BagDetail, Refusal> {
        self.ask(|reply| Question::Bag(id.to_owned(), reply)).await
    }

    /// Its tasks that are over, by index.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`].
    pub async fn results(&self, id: &str, page: Page) -> Result<Vec<idlewood_api::TaskResult>, Refusal> {
        self.ask(|reply| Reading::Results(id.to_owned(), page, reply)).await
    }

    /// The output of one of them; the hash of the blob that it is, where it is not in the record of the result.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::NotFound`] also when the task is not over.
    pub async fn output(&self, id: &str, index: u64) -> Result<Result<Vec<u8>, blake3::Hash>, Refusal> {
        self.ask(|reply| Reading::Output(id.to_owned(), index, reply)).await
    }

    /// Its tasks, by index.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`].
    pub async fn tasks(&self, id: &str, query: TaskQuery) -> Result<idlewood_api::Tasks, Refusal> {
        self.ask(|reply| Reading::Tasks(id.to_owned(), query, reply)).await
    }

    /// What those of its tasks have written that run.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Invalid`] when too much is asked at once.
    pub async fn live(&self, id: &str, request: idlewood_api::LiveRequest) -> Result<idlewood_api::Live, Refusal> {
        self.ask(|reply| LiveQuestion { id: id.to_owned(), request, reply }).await
    }

    /// What the machines signed that ran its tasks, by index; tasks that are over without any are left out.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`].
    pub async fn receipts(&self, id: &str) -> Result<Vec<idlewood_api::Receipt>, Refusal> {
        self.ask(|reply| Reading::Receipts(id.to_owned(), reply)).await
    }

    /// Takes a bag; returns when it is durable.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] when it makes no sense or a blob of it is not here.
    pub async fn submit(&self, request: idlewood_api::SubmitRequest) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| BagOrder::Submit(Box::new(request), reply)).await
    }

    /// Gives a bag up.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Conflict`] when it is over.
    pub async fn cancel(&self, id: &str) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| BagOrder::Cancel(id.to_owned(), reply)).await
    }

    /// Adds tasks to an endless bag; returns when they are durable.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Unavailable`] when so many wait that more have to, too.
    pub async fn add_lines(&self, id: &str, lines: idlewood_api::LinesRequest) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| EndlessOrder::Lines(id.to_owned(), lines, reply)).await
    }

    /// No more tasks of an endless bag come; returns when that is durable.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Conflict`] when it is closed, or has an end.
    pub async fn close(&self, id: &str) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| EndlessOrder::Close(id.to_owned(), reply)).await
    }

    /// These results of an endless bag are saved; returns when they are gone, durably.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Conflict`] when it has an end.
    pub async fn drain(&self, id: &str, tasks: Vec<(u64, u64)>) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| EndlessOrder::Drain(id.to_owned(), tasks, reply)).await
    }

    /// Holds, releases or renames a bag; returns when that is durable.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Conflict`] when it is over.
    pub async fn wish(&self, id: &str, wish: Wish) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| BagOrder::Wish(id.to_owned(), wish, reply)).await
    }

    /// Runs those of these tasks of a bag again that are over, or those that failed.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Conflict`] when there are none, it was cancelled, or what they need is gone.
    pub async fn rerun(&self, id: &str, tasks: Option<Vec<u64>>) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| BagOrder::Rerun(id.to_owned(), tasks, reply)).await
    }

    /// Removes a bag that is over, and its results; what it was.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Conflict`] when it is not over.
    pub async fn remove(&self, id: &str) -> Result<idlewood_api::Bag, Refusal> {
        self.ask(|reply| BagOrder::Remove(id.to_owned(), reply)).await
    }

    /// Everything with which another machine could go on with a bag, with or without its results so far.
    ///
    /// # Errors
    /// As [`NodeHandle::bag`]; [`Refusal::Conflict`] when it is over.
    pub async fn ticket(&self, id: &str, results: bool) -> Result<idlewood_api::Ticket, Refusal> {
        self.ask(|reply| Reading::Ticket(id.to_owned(), results, reply)).await
    }

    /// Freezes all tasks here until resumed, or for a while.
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn pause(&self, for_: Option<Duration>) -> Result<idlewood_api::Status, Refusal> {
        self.ask(|reply| OwnerOrder::Pause(for_, reply)).await
    }

    /// Undoes [`NodeHandle::pause`] and [`NodeHandle::finish`].
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn resume(&self) -> Result<idlewood_api::Status, Refusal> {
        self.ask(OwnerOrder::Resume).await
    }

    /// Takes no new tasks; the agent ends when those that run have.
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn finish(&self) -> Result<idlewood_api::Status, Refusal> {
        self.ask(OwnerOrder::Finish).await
    }

    /// Has this machine leave its grid for good: the agent ends in good order, forgets its membership, and starts anew alone.
    ///
    /// # Errors
    /// As [`NodeHandle::status`]; [`Refusal::Conflict`] where it belongs to no grid.
    pub async fn leave_grid(&self) -> Result<idlewood_api::Status, Refusal> {
        self.ask(OwnerOrder::LeaveGrid).await
    }

    /// Ends the agent in good order and starts it anew, with what its files say then.
    ///
    /// # Errors
    /// As [`NodeHandle::status`].
    pub async fn restart(&self) -> Result<idlewood_api::Status, Refusal> {
        self.ask(OwnerOrder::Restart).await
    }
}
