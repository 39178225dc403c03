//! What an expression says of a message: true, false, unknown, or that values do not compare.
//!
//! Every property is a text. A text compared with a number is read as a number of that kind, with
//! a truth value as a truth value (docs/behaviour.md, "SQL92 selectors").

use std::cmp::Ordering;

use super::syntax::{Expression, Part};

/// A text longer than this, in bytes, is no number: reading it again for each part of an expression
/// would take long.
const NUMBER_MAX: usize = 1024;

/// Values that do not compare: the message is not wanted, whatever stands around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incomparable;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value<'a> {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(&'a [u8]),
}

impl From<Option<bool>> for Value<'_> {
    fn from(truth: Option<bool>) -> Self {
        truth.map_or(Value::Null, Value::Bool)
    }
}

/// The values of the properties that an expression names, by their slots; `None`: not there.
pub type Found<'a> = [Option<&'a [u8]>];

/// The truth of an expression for a message; `None` is unknown.
pub fn truth(expression: &Expression, found: &Found<'_>) -> Result<Option<bool>, Incomparable> {
    match value(expression, found)? {
        Value::Bool(truth) => Ok(Some(truth)),
        Value::Null => Ok(None),
        _ => Err(Incomparable),
    }
}

/// How two constants that are numbers compare; `None` for anything else.
pub fn order_of_numbers(left: &Expression, right: &Expression) -> Option<Ordering> {
    let constant = |expression: &Expression| match expression {
        Expression::Int(number) => Some(Value::Int(*number)),
        Expression::Long(number) => Some(Value::Long(*number)),
        Expression::Double(number) => Some(Value::Double(*number)),
        _ => None,
    };
    order(constant(left)?, constant(right)?).ok()
}

fn value<'a>(expression: &'a Expression, found: &Found<'a>) -> Result<Value<'a>, Incomparable> {
    Ok(match expression {
        Expression::Null => Value::Null,
        Expression::Bool(truth) => Value::Bool(*truth),
        Expression::Int(number) => Value::Int(*number),
        Expression::Long(number) => Value::Long(*number),
        Expression::Double(number) => Value::Double(*number),
        Expression::Text(text) => Value::Text(text),
        Expression::Property(name) => found[name.slot].map_or(Value::Null, Value::Text),
        Expression::Negate(inner) => match value(inner, found)? {
            Value::Int(number) => Value::Int(number.wrapping_neg()),
            Value::Long(number) => Value::Long(number.wrapping_neg()),
            Value::Double(number) => Value::Double(-number),
            _ => Value::Null,
        },
        Expression::Not(inner) => truth(inner, found)?.map(|truth| !truth).into(),
        Expression::Cast(inner) => match value(inner, found)? {
            Value::Null => Value::Null,
            Value::Bool(truth) => Value::Bool(truth),
            _ => Value::Bool(false),
        },
        Expression::All(parts) => chain(parts, found, false)?,
        Expression::Any(parts) => chain(parts, found, true)?,
        Expression::Equal(operands) => {
            let [left, right] = operands.as_ref();
            equal(value(left, found)?, value(right, found)?)?.into()
        }
        Expression::Compare(how, operands) => {
            let [left, right] = operands.as_ref();
            ordered(value(left, found)?, value(right, found)?)?
                .map(|order| how.holds(order))
                .into()
        }
        Expression::Between { operands, not } => between(operands, *not, found)?,
        Expression::In {
            property,
            list,
            not,
        } => match found[property.slot] {
            Some(text) => {
                let listed = list
                    .binary_search_by(|item| item.as_ref().cmp(text))
                    .is_ok();
                Value::Bool(listed != *not)
            }
            None => Value::Null,
        },
        Expression::Search {
            value: inner,
            part,
            not,
        } => match value(inner, found)? {
            Value::Text(text) => Value::Bool(has(part, text).is_some_and(|has| has != *not)),
            _ => Value::Bool(false),
        },
    })
}

/// AND (`decides` is false) or OR (true) of all parts: the deciding value wins over an unknown
/// one, and what stands behind it is not looked at.
fn chain<'a>(
    parts: &'a [Expression],
    found: &Found<'a>,
    decides: bool,
) -> Result<Value<'a>, Incomparable> {
    let mut unknown = false;
    for part in parts {
        match truth(part, found)? {
            Some(truth) if truth == decides => return Ok(Value::Bool(decides)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown {
        Value::Null
    } else {
        Value::Bool(!decides)
    })
}

fn between<'a>(
    operands: &'a [Expression; 3],
    not: bool,
    found: &Found<'a>,
) -> Result<Value<'a>, Incomparable> {
    let [inner, low, high] = operands;
    let inner = value(inner, found)?;
    let outside_low = ordered(inner, value(low, found)?)?.map(Ordering::is_lt);
    if outside_low == Some(true) {
        return Ok(Value::Bool(not));
    }
    let outside_high = ordered(inner, value(high, found)?)?.map(Ordering::is_gt);
    Ok(match (outside_low, outside_high) {
        (_, Some(true)) => Value::Bool(not),
        (Some(_), Some(_)) => Value::Bool(!not),
        _ => Value::Null,
    })
}

/// Whether the text has the part; `None` when an empty part was asked for.
fn has(part: &Part, text: &[u8]) -> Option<bool> {
    match part {
        Part::Anywhere(finder) => {
            (!finder.needle().is_empty()).then(|| finder.find(text).is_some())
        }
        Part::Start(start) => (!start.is_empty()).then(|| text.starts_with(start)),
        Part::End(end) => (!end.is_empty()).then(|| text.ends_with(end)),
    }
}

fn equal(left: Value<'_>, right: Value<'_>) -> Result<Option<bool>, Incomparable> {
    match (left, right) {
        (Value::Null, Value::Null) => Ok(Some(true)),
        (Value::Null, _) => Ok(None),
        (_, Value::Null) => Ok(Some(false)),
        _ => order(left, right).map(|order| Some(order.is_eq())),
    }
}

/// The order for `<` and the like; `None` when one side is missing.
fn ordered(left: Value<'_>, right: Value<'_>) -> Result<Option<Ordering>, Incomparable> {
    match (left, right) {
        (Value::Null, _) | (_, Value::Null) => Ok(None),
        (Value::Text(l), Value::Text(r)) => {
            order(Value::Double(double(l)?), Value::Double(double(r)?)).map(Some)
        }
        _ => order(left, right).map(Some),
    }
}

fn order(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Incomparable> {
    Ok(match (left, right) {
        (Value::Bool(l), Value::Bool(r)) => l.cmp(&r),
        (Value::Text(l), Value::Text(r)) => l.cmp(r),
        (Value::Text(l), Value::Bool(r)) => l.eq_ignore_ascii_case(b"true").cmp(&r),
        (Value::Text(l), Value::Int(r)) => integer::<i32>(l)?.cmp(&r),
        (Value::Text(l), Value::Long(r)) => integer::<i64>(l)?.cmp(&r),
        (Value::Text(l), Value::Double(r)) => doubles(double(l)?, r),
        (Value::Int(l), Value::Text(r)) => l.cmp(&integer::<i32>(r)?),
        (Value::Long(l), Value::Text(r)) => l.cmp(&integer::<i64>(r)?),
        (Value::Double(l), Value::Text(r)) => doubles(l, double(r)?),
        (Value::Bool(_), Value::Text(_)) | (Value::Null, _) | (_, Value::Null) => {
            return Err(Incomparable);
        }
        // A truth value and a number differ.
        (Value::Bool(_), _) | (_, Value::Bool(_)) => Ordering::Less,
        (Value::Int(l), Value::Int(r)) => l.cmp(&r),
        (Value::Int(l), Value::Long(r)) => i64::from(l).cmp(&r),
        (Value::Long(l), Value::Int(r)) => l.cmp(&i64::from(r)),
        (Value::Long(l), Value::Long(r)) => l.cmp(&r),
        (Value::Double(l), Value::Double(r)) => doubles(l, r),
        (Value::Int(l), Value::Double(r)) => doubles(f64::from(l), r),
        (Value::Double(l), Value::Int(r)) => doubles(l, f64::from(r)),
        (Value::Long(l), Value::Double(r)) => doubles(l as f64, r),
        (Value::Double(l), Value::Long(r)) => doubles(l, r as f64),
    })
}

/// Java's order of doubles: -0.0 below 0.0, every NaN the same and above all.
fn doubles(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}

fn integer<T: std::str::FromStr>(text: &[u8]) -> Result<T, Incomparable> {
    // The same texts as Java's: a sign or none, then digits.
    if text.len() > NUMBER_MAX {
        return Err(Incomparable);
    }
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(Incomparable)
}

/// A decimal number as Java's `Double.valueOf` takes it: blanks around it, a sign, `NaN`,
/// `Infinity`, an `f` or `d` behind it. Hexadecimal ones are not taken.
fn double(text: &[u8]) -> Result<f64, Incomparable> {
    if text.len() > NUMBER_MAX {
        return Err(Incomparable);
    }
    let text = std::str::from_utf8(text).map_err(|_| Incomparable)?;
    let text = text.trim_matches(|c| c <= ' ');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = match unsigned {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        _ if unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') => unsigned
            .strip_suffix(['f', 'F', 'd', 'D'])
            .unwrap_or(unsigned)
            .parse()
            .ok(),
        _ => None,
    };
    let number = number.ok_or(Incomparable)?;
    Ok(if text.starts_with('-') {
        -number
    } else {
        number
    })
}
