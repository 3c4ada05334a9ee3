//! Bounds the execution of one query: its time, and the fields and bytes of its answer.
//!
//! The text of a query says nothing about the length of the lists that it gives. So each resolved
//! field is counted, also each item of a list, and the first one beyond a limit ends the query.

use super::scope::QueryScope;
use async_graphql::{
    ServerError, ServerResult, Value,
    async_trait::async_trait,
    extensions::{Extension, ExtensionContext, ExtensionFactory, NextResolve, ResolveInfo},
};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Longest time of an execution.
const MAX_TIME: Duration = Duration::from_secs(30);
/// Most fields of an answer, items of lists included.
const MAX_FIELDS: usize = 500_000;
/// Most fields of an answer that fail; each has an error with its path.
const MAX_FAILURES: usize = 1000;
/// Bytes of a field besides its value: its name, quotes, brackets.
const FIELD: usize = 16;

/// What the execution of one query may still use.
#[derive(Debug)]
pub(super) struct QueryBudget {
    deadline: Instant,
    fields: AtomicUsize,
    failures: AtomicUsize,
    bytes: AtomicUsize,
    most_bytes: usize,
    /// Why the execution ended early.
    exceeded: OnceLock<String>,
}

impl QueryBudget {
    /// A budget for an answer of at most `most_bytes` bytes.
    pub(super) fn new(most_bytes: usize) -> Arc<Self> {
        Self::until(Instant::now() + MAX_TIME, most_bytes)
    }

    /// A budget for the same query on another view, with the time that is left.
    pub(super) fn renewed(&self) -> Arc<Self> {
        Self::until(self.deadline, self.most_bytes)
    }

    fn until(deadline: Instant, most_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            deadline,
            fields: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            most_bytes,
            exceeded: OnceLock::new(),
        })
    }

    /// Why the execution ended early, if it did.
    pub(super) fn exceeded(&self) -> Option<&str> {
        self.exceeded.get().map(String::as_str)
    }

    /// Counts a field before it is resolved.
    fn begin_field(&self) -> Result<(), String> {
        if let Some(reason) = self.exceeded() {
            return Err(reason.into());
        }
        if Instant::now() >= self.deadline {
            return self.exceed(format!("the query has taken {MAX_TIME:?}"));
        }
        if self.fields.fetch_add(1, Ordering::Relaxed) >= MAX_FIELDS {
            return self.exceed(format!("the answer has more than {MAX_FIELDS} fields"));
        }
        Ok(())
    }

    /// Counts the bytes of a field.
    fn end_field(&self, value: Option<&Value>) -> Result<(), String> {
        // Lists and objects have been counted with their fields.
        let own = match value {
            Some(Value::String(text)) => text.len(),
            _ => 0,
        };
        let before = self.bytes.fetch_add(FIELD + own, Ordering::Relaxed);
        if before.saturating_add(FIELD + own) > self.most_bytes {
            let most = self.most_bytes;
            let limit = format!("the answer has more than {most} bytes (--rpc.max-response-size)");
            return self.exceed(limit);
        }
        Ok(())
    }

    /// Counts a field that failed.
    fn fail_field(&self) -> Result<(), String> {
        if self.failures.fetch_add(1, Ordering::Relaxed) >= MAX_FAILURES {
            return self.exceed(format!("more than {MAX_FAILURES} fields fail"));
        }
        Ok(())
    }

    fn exceed(&self, reason: String) -> Result<(), String> {
        Err(self.exceeded.get_or_init(|| format!("{reason}: ask for less at once")).clone())
    }
}

/// Counts every field of a query in the budget of its scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct BudgetExtension;

impl ExtensionFactory for BudgetExtension {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(*self)
    }
}

#[async_trait]
impl Extension for BudgetExtension {
    async fn resolve(
        &self,
        context: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        let Some(QueryScope { budget, .. }) = context.data_opt::<QueryScope>() else {
            return next.run(context, info).await;
        };
        let refused = |reason: String| ServerError::new(reason, None);
        budget.begin_field().map_err(refused)?;
        let resolved = next.run(context, info).await;
        let counted = match &resolved {
            Ok(value) => budget.end_field(value.as_ref()),
            Err(_) => budget.fail_field(),
        };
        counted.map_err(refused)?;
        resolved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_bytes_and_time_have_limits() {
        let budget = QueryBudget::new(usize::MAX);
        for _ in 0..MAX_FIELDS {
            budget.begin_field().unwrap();
        }
        assert!(budget.begin_field().unwrap_err().contains("more than 500000 fields"));
        // The first reason stays.
        assert!(budget.end_field(None).is_ok() && budget.begin_field().is_err());

        let budget = QueryBudget::new(100);
        budget.end_field(Some(&Value::String("x".repeat(80)))).unwrap();
        assert!(budget.end_field(None).unwrap_err().contains("more than 100 bytes"));
        assert!(budget.exceeded().is_some());

        let budget = QueryBudget::new(100);
        for _ in 0..MAX_FAILURES {
            budget.fail_field().unwrap();
        }
        assert!(budget.fail_field().unwrap_err().contains("more than 1000 fields fail"));

        let late = QueryBudget { deadline: Instant::now(), ..fresh() };
        assert!(late.begin_field().unwrap_err().contains("has taken 30s"));
        assert!(late.renewed().begin_field().is_err());
    }

    fn fresh() -> QueryBudget {
        Arc::into_inner(QueryBudget::new(100)).unwrap()
    }
}
