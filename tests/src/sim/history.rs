//! History of operations, with their clients, times and results. The oracle knows nothing else.

use super::sim_operation::{End, SimOperation};

/// Id of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OperationId(usize);

/// One operation. Times are numbers that grow through the whole run.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) actor: usize,
    pub(super) sim_operation: SimOperation,
    pub(super) began: u64,
    pub(super) ended: Option<(u64, End)>,
    /// Number of the server process that answered, or that the request may have reached.
    pub(super) epoch: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct History {
    records: Vec<Record>,
    moments: u64,
}

impl History {
    pub(super) fn begin(&mut self, actor: usize, sim_operation: SimOperation) -> OperationId {
        self.moments += 1;
        self.records.push(Record { actor, sim_operation, began: self.moments, ended: None, epoch: None });
        OperationId(self.records.len() - 1)
    }

    /// # Errors
    /// It had ended before.
    pub(super) fn end(&mut self, id: OperationId, end: End, epoch: Option<u32>) -> Result<(), CheckError> {
        self.moments += 1;
        let record = &mut self.records[id.0];
        record.epoch = epoch;
        match record.ended.replace((self.moments, end)) {
            None => Ok(()),
            Some((_, before)) => Err(CheckError(format!("{id} ended twice; before: {before}"))),
        }
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn get(&self, id: OperationId) -> &Record {
        &self.records[id.0]
    }
}

impl core::fmt::Display for OperationId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Violation of a rule, with its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckError(pub(super) String);
