//! The table of AWS call budgets, which comes from the rate limiter.

use fleetwright::adapters::aws::call_budgets;

use super::tables::{Tables, hold, table};

#[test]
fn call_budgets_come_from_the_rate_limiter() {
    let rows = call_budgets().map(|budget| {
        let numbers = [budget.burst, budget.rate, budget.within(60)];
        let [burst, rate, most] = numbers.map(|number| number.to_string());
        [budget.calls.to_owned(), burst, rate, most]
    });
    let head = ["calls", "at once", "per second after that", "most in one minute"];
    let table = table(head, &rows.collect::<Vec<_>>());
    hold("docs/src/operations/sizing.md", &Tables::from([("call budgets".to_owned(), table)]));
}
