//! The tree of a compiled expression, and which trees mean something.

use std::cmp::Ordering;
use std::fmt;

use memchr::memmem;

use super::evaluate;
use super::{MAX_DEPTH, SelectorError};

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// Whether values in this order fulfil the comparison.
    pub fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// A property that an expression names.
pub struct Name {
    pub text: Box<str>,
    /// Its place among the names of the whole expression; known once all of it is read.
    pub slot: usize,
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        let text = text.into();
        Self { text, slot: 0 }
    }
}

/// Where in a text another is looked for.
pub enum Part {
    Anywhere(Box<memmem::Finder<'static>>),
    Start(Box<[u8]>),
    End(Box<[u8]>),
}

/// A compiled expression.
pub enum Expression {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(Box<[u8]>),
    Property(Name),
    Negate(Box<Expression>),
    Not(Box<Expression>),
    /// A property where a truth value is needed: present or not, it is never true.
    Cast(Box<Expression>),
    All(Vec<Expression>),
    Any(Vec<Expression>),
    Equal(Box<[Expression; 2]>),
    Compare(Comparison, Box<[Expression; 2]>),
    Between {
        /// The value, the low and the high bound.
        operands: Box<[Expression; 3]>,
        not: bool,
    },
    In {
        property: Name,
        /// In ascending order.
        list: Box<[Box<[u8]>]>,
        not: bool,
    },
    Search {
        value: Box<Expression>,
        part: Part,
        not: bool,
    },
}

/// An expression and how deep it nests.
pub struct Node {
    pub expression: Expression,
    depth: u16,
}

fn meaning(text: String) -> SelectorError {
    SelectorError::Meaning(text)
}

impl Node {
    /// An expression without others in it.
    pub fn leaf(expression: Expression) -> Self {
        Self {
            expression,
            depth: 1,
        }
    }

    fn above(depth: u16, expression: Expression) -> Result<Self, SelectorError> {
        if depth >= MAX_DEPTH {
            return Err(SelectorError::TooDeep);
        }
        Ok(Self {
            expression,
            depth: depth + 1,
        })
    }

    fn truth(self) -> Result<Self, SelectorError> {
        match self.expression {
            Expression::Property(_) => {
                Self::above(self.depth, Expression::Cast(Box::new(self.expression)))
            }
            _ if self.expression.is_truth() => Ok(self),
            other => Err(meaning(format!(
                "Expression will not result in a boolean value: {other}"
            ))),
        }
    }

    /// `left AND right`.
    pub fn and(self, right: Self) -> Result<Self, SelectorError> {
        let (left, right) = (self.truth()?, right.truth()?);
        let depth = left.depth.max(right.depth);
        match left.expression {
            // Chains stay flat, so that long ones do not nest.
            Expression::All(mut parts) => {
                parts.push(right.expression);
                Self::chain(left.depth, right.depth, Expression::All(parts))
            }
            first => Self::above(depth, Expression::All(vec![first, right.expression])),
        }
    }

    /// `left OR right`.
    pub fn or(self, right: Self) -> Result<Self, SelectorError> {
        let (left, right) = (self.truth()?, right.truth()?);
        let depth = left.depth.max(right.depth);
        match left.expression {
            Expression::Any(mut parts) => {
                parts.push(right.expression);
                Self::chain(left.depth, right.depth, Expression::Any(parts))
            }
            first => Self::above(depth, Expression::Any(vec![first, right.expression])),
        }
    }

    fn chain(whole: u16, part: u16, expression: Expression) -> Result<Self, SelectorError> {
        Self::above(part.max(whole - 1), expression)
    }

    /// `NOT value`.
    pub fn not(self) -> Result<Self, SelectorError> {
        let value = self.truth()?;
        Self::above(value.depth, Expression::Not(Box::new(value.expression)))
    }

    /// `- value`.
    pub fn negate(self) -> Result<Self, SelectorError> {
        Self::above(self.depth, Expression::Negate(Box::new(self.expression)))
    }

    /// `left = right`.
    pub fn equal(self, right: Self) -> Result<Self, SelectorError> {
        let (left, right) = (self, right);
        for side in [&left.expression, &right.expression] {
            if matches!(side, Expression::Null) {
                return Err(meaning("'NULL' cannot be compared.".to_owned()));
            }
        }
        let (l, r) = (&left.expression, &right.expression);
        if l.is_constant() && r.is_constant() && l.is_truth() && !r.is_truth() {
            return Err(meaning(format!("'{l}' cannot be compared with '{r}'")));
        }
        Self::unchecked_equal(left, right)
    }

    fn unchecked_equal(left: Self, right: Self) -> Result<Self, SelectorError> {
        let depth = left.depth.max(right.depth);
        let operands = Box::new([left.expression, right.expression]);
        Self::above(depth, Expression::Equal(operands))
    }

    /// `value IS NULL`.
    pub fn null(self) -> Result<Self, SelectorError> {
        Self::unchecked_equal(self, Self::leaf(Expression::Null))
    }

    fn check_ordered(&self) -> Result<(), SelectorError> {
        let value = &self.expression;
        let is_number = matches!(
            value,
            Expression::Int(_) | Expression::Long(_) | Expression::Double(_)
        );
        if value.is_truth() || (value.is_constant() && !is_number) {
            return Err(meaning(format!("Value '{value}' cannot be compared.")));
        }
        Ok(())
    }

    /// `left < right` and the like.
    pub fn compare(self, how: Comparison, right: Self) -> Result<Self, SelectorError> {
        self.check_ordered()?;
        right.check_ordered()?;
        let depth = self.depth.max(right.depth);
        let operands = Box::new([self.expression, right.expression]);
        Self::above(depth, Expression::Compare(how, operands))
    }

    /// `value [NOT] BETWEEN low AND high`.
    pub fn between(self, low: Self, high: Self, not: bool) -> Result<Self, SelectorError> {
        for operand in [&self, &low, &high] {
            operand.check_ordered()?;
        }
        if !not
            && evaluate::order_of_numbers(&high.expression, &low.expression)
                .is_some_and(Ordering::is_lt)
        {
            return Err(meaning(format!(
                "Illegal values of between, left value({}) must less than or equal to \
                 right value({})",
                low.expression, high.expression
            )));
        }
        let depth = self.depth.max(low.depth).max(high.depth);
        let operands = Box::new([self.expression, low.expression, high.expression]);
        Self::above(depth, Expression::Between { operands, not })
    }

    /// `property [NOT] IN (texts)`.
    pub fn listed(self, mut list: Vec<Box<[u8]>>, not: bool) -> Result<Self, SelectorError> {
        let Expression::Property(property) = self.expression else {
            let got = self.expression;
            return Err(meaning(format!(
                "Expected a property for In expression, got: {got}"
            )));
        };
        list.sort_unstable();
        Ok(Self::leaf(Expression::In {
            property,
            list: list.into_boxed_slice(),
            not,
        }))
    }

    /// `value [NOT] CONTAINS text` and the like.
    pub fn search(self, part: Part, not: bool) -> Result<Self, SelectorError> {
        let value = Box::new(self.expression);
        Self::above(self.depth, Expression::Search { value, part, not })
    }

    /// The whole expression.
    pub fn finish(self) -> Result<Expression, SelectorError> {
        self.truth().map(|node| node.expression)
    }
}

impl Expression {
    /// Calls `visit` with each name of a property, and counts the parts of the expression.
    pub fn each_name(&mut self, visit: &mut dyn FnMut(&mut Name)) -> usize {
        let mut inner =
            |all: &mut [Self]| -> usize { all.iter_mut().map(|one| one.each_name(visit)).sum() };
        1 + match self {
            Self::Property(name) | Self::In { property: name, .. } => {
                visit(name);
                0
            }
            Self::Negate(one) | Self::Not(one) | Self::Cast(one) => one.each_name(visit),
            Self::Search { value, .. } => value.each_name(visit),
            Self::All(parts) | Self::Any(parts) => inner(parts),
            Self::Equal(operands) | Self::Compare(_, operands) => inner(operands.as_mut_slice()),
            Self::Between { operands, .. } => inner(operands.as_mut_slice()),
            Self::Null
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Long(_)
            | Self::Double(_)
            | Self::Text(_) => 0,
        }
    }

    /// Whether this is true, false or unknown, whatever the message.
    fn is_truth(&self) -> bool {
        !matches!(
            self,
            Self::Int(_)
                | Self::Long(_)
                | Self::Double(_)
                | Self::Text(_)
                | Self::Property(_)
                | Self::Negate(_)
        )
    }

    fn is_constant(&self) -> bool {
        matches!(
            self,
            Self::Null
                | Self::Bool(_)
                | Self::Int(_)
                | Self::Long(_)
                | Self::Double(_)
                | Self::Text(_)
        )
    }
}

fn negation(not: bool) -> &'static str {
    if not { "NOT " } else { "" }
}

fn joined(f: &mut fmt::Formatter<'_>, parts: &[Expression], between: &str) -> fmt::Result {
    f.write_str("(")?;
    for (index, part) in parts.iter().enumerate() {
        let before = if index == 0 { "" } else { between };
        write!(f, "{before}{part}")?;
    }
    f.write_str(")")
}

fn quoted(text: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(text).replace('\'', "''"))
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Bool(true) => f.write_str("TRUE"),
            Self::Bool(false) => f.write_str("FALSE"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Long(number) => write!(f, "{number}"),
            Self::Double(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Property(name) => f.write_str(&name.text),
            Self::Negate(value) => write!(f, "(- {value})"),
            Self::Not(value) => write!(f, "(NOT {value})"),
            Self::Cast(value) => write!(f, "{value}"),
            Self::All(parts) => joined(f, parts, " AND "),
            Self::Any(parts) => joined(f, parts, " OR "),
            Self::Equal(operands) => joined(f, operands.as_slice(), " = "),
            Self::Compare(how, operands) => {
                joined(f, operands.as_slice(), &format!(" {} ", how.sign()))
            }
            Self::Between { operands, not } => {
                let [value, low, high] = operands.as_ref();
                write!(f, "({value} {}BETWEEN {low} AND {high})", negation(*not))
            }
            Self::In {
                property,
                list,
                not,
            } => {
                let list: Vec<String> = list.iter().map(|text| quoted(text)).collect();
                write!(
                    f,
                    "({} {}IN ({}))",
                    property.text,
                    negation(*not),
                    list.join(", ")
                )
            }
            Self::Search { value, part, not } => {
                let (name, text) = match part {
                    Part::Anywhere(finder) => ("CONTAINS", finder.needle()),
                    Part::Start(text) => ("STARTSWITH", &text[..]),
                    Part::End(text) => ("ENDSWITH", &text[..]),
                };
                write!(f, "({value} {}{name} {})", negation(*not), quoted(text))
            }
        }
    }
}
