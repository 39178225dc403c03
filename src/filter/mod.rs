//! SQL92 selectors: which messages a consumer wants by their properties
//! (docs/behaviour.md, "SQL92 selectors").
//!
//! An expression is compiled once, when a client subscribes or a pull brings its own; looking at a
//! message allocates nothing.

use std::fmt;

use saturnmq_storage::format::properties::Properties;
use thiserror::Error;

mod bloom;
mod evaluate;
mod lexer;
mod parser;
pub mod registered;
mod syntax;

use syntax::Expression;

/// The expression type of SQL92 selectors.
pub const SQL92: &str = "SQL92";

/// Longest expression, in bytes.
pub const MAX_LENGTH: usize = 32 * 1024;
/// Deepest nesting of an expression: parentheses, operators in one another, chains of comparisons.
pub const MAX_DEPTH: u16 = 64;

/// Why an expression cannot be compiled.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SelectorError {
    /// The text does not follow the grammar.
    #[error("Encountered {found} at line {line}, column {column}; expected {expected}")]
    Syntax {
        /// What stands there.
        found: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What may stand there.
        expected: &'static str,
    },
    /// The expression means nothing.
    #[error("{0}")]
    Meaning(String),
    /// The expression is longer than [`MAX_LENGTH`].
    #[error("the expression has {length} bytes, at most {MAX_LENGTH} are taken")]
    TooLong {
        /// Its bytes.
        length: usize,
    },
    /// The expression nests deeper than [`MAX_DEPTH`].
    #[error("the expression nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// A compiled SQL92 expression.
pub struct Selector {
    expression: Expression,
}

impl Selector {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`SelectorError`] says what is wrong and where; unlike Apache's, what follows a complete
    /// expression is an error too.
    pub fn compile(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_LENGTH {
            return Err(SelectorError::TooLong { length: text.len() });
        }
        parser::parse(text).map(|expression| Self { expression })
    }

    /// Whether a message with these properties is wanted. What cannot be compared is not.
    pub fn matches(&self, properties: Properties<'_>) -> bool {
        evaluate::truth(&self.expression, properties) == Ok(Some(true))
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({})", self.expression)
    }
}

#[cfg(test)]
mod tests;
