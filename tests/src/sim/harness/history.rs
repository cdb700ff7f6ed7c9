//! History of operations, with their clients, times and results. The oracle knows nothing else.

use super::sim_operation::{End, SimOperation};

/// Id of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim) struct OperationId(usize);

/// One operation. Times are numbers that grow through the whole run.
#[derive(Debug)]
pub(in crate::sim) struct Record {
    pub(in crate::sim) actor: usize,
    pub(in crate::sim) sim_operation: SimOperation,
    pub(in crate::sim) began: u64,
    pub(in crate::sim) ended: Option<(u64, End)>,
    /// Number of the server process that answered, or that the request may have reached.
    pub(in crate::sim) epoch: Option<u32>,
}

#[derive(Debug, Default)]
pub(in crate::sim) struct History {
    /// Whether the server executes lists of keys of PyTorch's protocol in parts of one or two, so that others' requests may
    /// come in between.
    pub(in crate::sim) splits_lists: bool,
    records: Vec<Record>,
    moments: u64,
}

impl History {
    pub(in crate::sim) fn begin(&mut self, actor: usize, sim_operation: SimOperation) -> OperationId {
        let began = self.moment();
        self.records.push(Record { actor, sim_operation, began, ended: None, epoch: None });
        OperationId(self.records.len() - 1)
    }

    /// Returns a moment after all that were recorded.
    pub(in crate::sim) const fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// # Errors
    /// It had ended before.
    pub(in crate::sim) fn end(
        &mut self,
        id: OperationId,
        end: End,
        epoch: Option<u32>,
    ) -> Result<(), CheckError> {
        let moment = self.moment();
        let record = &mut self.records[id.0];
        record.epoch = epoch;
        match record.ended.replace((moment, end)) {
            None => Ok(()),
            Some((_, before)) => Err(CheckError(format!("{id} ended twice; before: {before}"))),
        }
    }

    pub(in crate::sim) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(in crate::sim) fn get(&self, id: OperationId) -> &Record {
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
pub(in crate::sim) struct CheckError(pub(in crate::sim) String);
