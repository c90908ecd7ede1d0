//! What machines sign of results: made of a result and its bag's manifest, which executor and submitter both have, and checked.
//!
//! What a machine signs is in `idlewood-trust`. Results of this machine's own tasks never travel; their receipts are signed when
//! somebody asks for them.

use idlewood_overlay::{GridId, PeerId};
use idlewood_scheduler::{BagId, RESULTS_MAX, TaskResult};
use idlewood_trust::manifest::Manifest;
use idlewood_trust::{Batch, Ending, Gate, Proof, Receipt, Statement};

use super::results::Finished;

/// What its executor says of a task.
fn statement(grid: GridId, bag: BagId, manifest: &Manifest, result: &TaskResult) -> Statement {
    let ending = match result {
        TaskResult { unfinished: true, .. } => Ending::HandedBack,
        TaskResult { crashed: true, .. } => Ending::Crashed,
        TaskResult { success: true, .. } => Ending::Succeeded,
        _ => Ending::Failed,
    };
    Statement {
        grid,
        bag: bag.0,
        index: result.index,
        attempt: result.attempt,
        program: manifest.program_of(result.index).blob.0,
        input: manifest.input_hash(result.index),
        output: result.output.0,
        ending,
        exit_code: result.exit_code,
        work_kop: (result.work_mops * 1e3) as u64,
    }
}

/// What their executor says of tasks.
pub(super) fn statements(grid: GridId, bag: BagId, manifest: &Manifest, results: &[TaskResult]) -> Vec<Statement> {
    results.iter().map(|result| statement(grid, bag, manifest, result)).collect()
}

/// Puts what proves it to each result, if this machine signed all of them.
pub(super) fn prove(
    grid: GridId,
    bag: BagId,
    manifest: &Manifest,
    executor: PeerId,
    results: &mut [TaskResult],
    signature: Option<&[u8]>,
) -> bool {
    let batch = Batch::new(&statements(grid, bag, manifest, results));
    let signature = signature.and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
    let Some(signature) = signature.filter(|signature| batch.is_signed_by(executor, signature)) else { return false };
    for (position, result) in results.iter_mut().enumerate() {
        result.receipt = Some(batch.proof(position, signature).encode());
    }
    true
}

/// Whether the machine that is said to have run the task signed what the result says of it.
pub(super) fn is_proven(grid: GridId, bag: BagId, manifest: &Manifest, executor: PeerId, result: &TaskResult) -> bool {
    let proof = result.receipt.as_deref().and_then(|bytes| Proof::decode(bytes).ok());
    proof.is_some_and(|proof| Receipt::new(statement(grid, bag, manifest, result), executor, proof).holds())
}

/// Puts what proves it to each result of a task that this machine ran itself, among results that it took for another.
pub(super) fn sign_own(gate: &Gate, bag: BagId, manifest: &Manifest, results: &mut [(PeerId, TaskResult)]) {
    let mut own: Vec<&mut TaskResult> =
        results.iter_mut().filter(|(executor, _)| *executor == gate.me()).map(|(_, result)| result).collect();
    if own.is_empty() {
        return;
    }
    let said = own.iter().map(|result| statement(gate.grid(), bag, manifest, result)).collect::<Vec<_>>();
    let batch = Batch::new(&said);
    let signature = gate.sign_results(&batch);
    for (position, result) in own.iter_mut().enumerate() {
        result.receipt = Some(batch.proof(position, signature).encode());
    }
}

/// Whether a result comes without its output, or with the one that it names.
pub(super) fn is_its_output(result: &TaskResult) -> bool {
    result.content.as_ref().is_none_or(|content| blake3::hash(content.bytes()) == result.output.0)
}

/// The receipts of these tasks of a bag, by index; tasks that are over without any are left out.
pub(super) fn of(gate: &Gate, bag: BagId, manifest: &Manifest, finished: Vec<Finished>) -> Vec<(u64, Receipt)> {
    let grid = gate.grid();
    let (own, others): (Vec<_>, Vec<_>) = finished.into_iter().partition(|done| done.executor == gate.me());
    let own: Vec<TaskResult> = own.into_iter().map(|done| done.result).collect();
    let mut receipts: Vec<(u64, Receipt)> =
        own.chunks(RESULTS_MAX).flat_map(|results| sign(gate, statements(grid, bag, manifest, results))).collect();
    for Finished { executor, result, .. } in others {
        let proof = result.receipt.as_deref().and_then(|bytes| Proof::decode(bytes).ok());
        let receipt = proof.map(|proof| Receipt::new(statement(grid, bag, manifest, &result), executor, proof));
        receipts.extend(receipt.map(|receipt| (result.index, receipt)));
    }
    receipts.sort_unstable_by_key(|(index, _)| *index);
    receipts
}

/// This machine's receipts of what it says, by index.
fn sign(gate: &Gate, statements: Vec<Statement>) -> Vec<(u64, Receipt)> {
    let batch = Batch::new(&statements);
    let signature = gate.sign_results(&batch);
    let receipts = statements.into_iter().enumerate();
    let receipts = receipts.map(|(position, said)| (said.index, said, batch.proof(position, signature)));
    receipts.map(|(index, said, proof)| (index, Receipt::new(said, gate.me(), proof))).collect()
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::{BlobId, SmallOutput};
    use libp2p::identity::Keypair;

    use super::super::task::tests::manifest;
    use super::*;

    fn result(index: u64) -> TaskResult {
        TaskResult {
            index,
            attempt: 0,
            success: true,
            crashed: false,
            unfinished: false,
            output: BlobId([index as u8; 32]),
            output_bytes: 9,
            content: None,
            work_mops: 2.5,
            exit_code: Some(0),
            receipt: Some(vec![1, 2, 3]),
            fingerprint: None,
        }
    }

    #[test]
    fn an_output_that_comes_with_a_result_is_the_one_that_it_names() {
        let content = SmallOutput::new(b"what it printed");
        let named = TaskResult { output: BlobId(*blake3::hash(b"what it printed").as_bytes()), ..result(1) };
        assert!(is_its_output(&named), "it may be fetched");
        assert!(is_its_output(&TaskResult { content: content.clone(), ..named }));
        assert!(!is_its_output(&TaskResult { content, ..result(1) }));
    }

    #[test]
    fn a_steward_hands_over_what_machines_signed_and_nothing_else() {
        let [executor, steward] = [(); 2].map(|()| Gate::open(&Keypair::generate_ed25519(), None).expect("alone"));
        let (grid, bag, manifest) = (steward.grid(), BagId([8; 32]), manifest());
        let is_proven = |(ran_on, result): &(PeerId, TaskResult)| is_proven(grid, bag, &manifest, *ran_on, result);
        let mut results: Vec<TaskResult> = (0..3).map(result).collect();
        let signature = executor.sign_results(&Batch::new(&statements(grid, bag, &manifest, &results)));
        assert!(prove(grid, bag, &manifest, executor.me(), &mut results, Some(&signature)));
        let mut kept: Vec<_> = results.into_iter().map(|result| (executor.me(), result)).collect();
        kept.push((steward.me(), TaskResult { receipt: None, ..result(7) }));
        assert_eq!(kept.iter().map(is_proven).collect::<Vec<_>>(), [true, true, true, false]);
        sign_own(&steward, bag, &manifest, &mut kept);
        assert!(kept.iter().all(is_proven), "and what it ran itself");
        let said = |change: &dyn Fn(&mut (PeerId, TaskResult))| {
            let mut kept = kept[1].clone();
            change(&mut kept);
            is_proven(&kept)
        };
        assert!(said(&|_| ()));
        assert!(!said(&|kept| kept.0 = steward.me()), "in its own name");
        assert!(!said(&|kept| kept.1.output = BlobId([9; 32])), "another output");
        assert!(!said(&|kept| kept.1.index = 2), "of another task");
        assert!(!said(&|kept| kept.1.success = false));
        assert!(!said(&|kept| kept.1.receipt = None));
    }

    #[test]
    fn results_are_taken_as_their_machine_signed_them_and_not_otherwise() {
        let [gate, other] = [(); 2].map(|()| Gate::open(&Keypair::generate_ed25519(), None).expect("alone"));
        let (grid, bag, manifest) = (GridId([7; 32]), BagId([8; 32]), manifest());
        let results: Vec<TaskResult> = (0..3).map(result).collect();
        let signature = gate.sign_results(&Batch::new(&statements(grid, bag, &manifest, &results)));
        let taken = |change: &dyn Fn(&mut Vec<TaskResult>)| {
            let mut results = results.clone();
            change(&mut results);
            prove(grid, bag, &manifest, gate.me(), &mut results, Some(&signature)).then_some(results)
        };
        let proven = taken(&|_| ()).expect("it is signed");
        for result in proven {
            let proof = Proof::decode(&result.receipt.clone().expect("it has one")).expect("ours");
            let receipt = Receipt::new(statement(grid, bag, &manifest, &result), gate.me(), proof);
            let read = Receipt::verify(&receipt.encode()).expect("it can be checked alone");
            let said = read.statement;
            assert_eq!((said.index, said.output, said.work_kop), (result.index, result.output.0, 2500));
            assert_eq!((said.ending, said.exit_code, said.program), (Ending::Succeeded, Some(0), [3; 32]));
        }
        assert!(taken(&|results| results[1].output = BlobId([9; 32])).is_none());
        assert!(taken(&|results| results[1].success = false).is_none());
        assert!(taken(&|results| results[1].exit_code = Some(1)).is_none());
        assert!(taken(&|results| results[1].work_mops = 1.0).is_none());
        assert!(taken(&|results| results.swap(0, 2)).is_none());
        assert!(taken(&|results| drop(results.pop())).is_none());
        let mut results = results;
        let mut proves = |grid, bag, executor, signature: Option<&[u8]>| {
            prove(grid, bag, &manifest, executor, &mut results, signature)
        };
        assert!(proves(grid, bag, gate.me(), Some(&signature)));
        assert!(!proves(grid, bag, other.me(), Some(&signature)));
        assert!(!proves(GridId([1; 32]), bag, gate.me(), Some(&signature)));
        assert!(!proves(grid, BagId([1; 32]), gate.me(), Some(&signature)));
        assert!(!proves(grid, bag, gate.me(), None));
        assert!(!proves(grid, bag, gate.me(), Some(&signature[1..])));
    }
}
