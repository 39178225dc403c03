use super::*;

fn properties(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in pairs {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(2);
    }
    bytes
}

fn matches(expression: &str, pairs: &[(&str, &str)]) -> bool {
    let selector = Selector::compile(expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
    selector.matches(Properties::new(&properties(pairs)), &mut 0)
}

#[track_caller]
fn wanted(expression: &str, pairs: &[(&str, &str)]) {
    assert!(matches(expression, pairs), "{expression} {pairs:?}");
}

#[track_caller]
fn unwanted(expression: &str, pairs: &[(&str, &str)]) {
    assert!(!matches(expression, pairs), "{expression} {pairs:?}");
}

fn problem(expression: &str) -> String {
    Selector::compile(expression).unwrap_err().to_string()
}

#[test]
fn a_number_is_compared_as_the_kind_that_the_expression_names() {
    wanted("a = 5", &[("a", "5")]);
    wanted("a = 5", &[("a", "+5")]);
    wanted("a > 5 AND a < 2147483648", &[("a", "6")]);
    wanted("a = 5.0", &[("a", "5")]);
    wanted("a >= 5.5", &[("a", " 5.5d")]);
    unwanted("a > 5", &[("a", "7.5")]);
    unwanted("NOT (a > 5)", &[("a", "7.5")]);
    unwanted("a = 5", &[("a", "2147483648")]);
    wanted("a = 2147483648", &[("a", "2147483648")]);
    wanted("a = 9223372036854775807L", &[("a", "9223372036854775807")]);
    wanted("a = -5", &[("a", "-5")]);
    wanted("- 5 < a", &[("a", "0")]);
    unwanted("-a = -5", &[("a", "5")]);
    wanted("a > b", &[("a", "10"), ("b", "9")]);
    unwanted("a > b", &[("a", "x"), ("b", "9")]);
    wanted("a < Infinity", &[("a", "1"), ("Infinity", "Infinity")]);
}

#[test]
fn a_missing_property_is_unknown_and_never_matches_by_negation() {
    for expression in [
        "a = 1",
        "a <> 1",
        "NOT (a = 1)",
        "a > 1",
        "NOT (a > 1)",
        "a BETWEEN 1 AND 2",
        "a NOT BETWEEN 1 AND 2",
        "a IN ('x')",
        "a NOT IN ('x')",
        "a CONTAINS 'x'",
        "a NOT CONTAINS 'x'",
        "a",
        "NOT a",
        "1 = a",
        "NULL",
    ] {
        unwanted(expression, &[("b", "1")]);
    }
    wanted("a IS NULL", &[]);
    unwanted("a IS NOT NULL", &[]);
    wanted("a IS NOT NULL", &[("a", "x")]);
    wanted("1 <> a", &[]);
    wanted("a = b", &[]);
}

#[test]
fn unknown_follows_the_three_valued_tables() {
    wanted("u = 1 OR TRUE", &[]);
    unwanted("u = 1 OR FALSE", &[]);
    unwanted("NOT (u = 1 OR FALSE)", &[]);
    wanted("NOT (u = 1 AND FALSE)", &[]);
    unwanted("NOT (u = 1 AND TRUE)", &[]);
    wanted("FALSE OR u = 1 OR a = 'x'", &[("a", "x")]);
    // What decides first hides what would not compare.
    wanted("a = 'x' OR a > 1", &[("a", "x")]);
    unwanted("a > 1 OR a = 'x'", &[("a", "x")]);
    wanted("NOT (a = 'y' AND a > 1)", &[("a", "x")]);
}

#[test]
fn texts_are_equal_or_looked_for_in_one_another() {
    wanted("a = 'it''s'", &[("a", "it's")]);
    wanted("a = '订单'", &[("a", "订单")]);
    wanted("a <> 'x'", &[("a", "y")]);
    wanted("a CONTAINS 'b''c'", &[("a", "ab'cd")]);
    wanted("a STARTSWITH 'ab' AND a ENDSWITH 'cd'", &[("a", "abcd")]);
    wanted(
        "a NOT STARTSWITH 'b' AND a not endswith 'b'",
        &[("a", "abc")],
    );
    wanted("a NOT CONTAINS 'x'", &[("a", "abc")]);
    unwanted("a CONTAINS ''", &[("a", "abc")]);
    unwanted("a NOT CONTAINS ''", &[("a", "abc")]);
    wanted("a IN ('x', 'y', 'z')", &[("a", "y")]);
    wanted("a NOT IN ('x', 'y')", &[("a", "z")]);
    unwanted("a IN ('x', 'y')", &[("a", "z")]);
}

#[test]
fn truth_values_are_compared_with_texts_by_name() {
    wanted("a = TRUE", &[("a", "True")]);
    wanted("a = false", &[("a", "no")]);
    unwanted("TRUE = a", &[("a", "true")]);
    unwanted("a", &[("a", "true")]);
    wanted("NOT a", &[("a", "true")]);
    wanted("(a = 1) = (b = 2)", &[("a", "1"), ("b", "2")]);
    wanted("(a = 1) = TRUE", &[("a", "1")]);
}

#[test]
fn bounds_of_between_belong_to_it() {
    wanted("a BETWEEN 1 AND 3", &[("a", "1")]);
    wanted("a BETWEEN 1 AND 3", &[("a", "3")]);
    unwanted("a BETWEEN 1 AND 3", &[("a", "4")]);
    wanted("a NOT BETWEEN 1 AND 3", &[("a", "0")]);
    wanted("a NOT BETWEEN -3 AND -1", &[("a", "0")]);
    unwanted("a NOT BETWEEN 1 AND 3", &[("a", "2")]);
    wanted("a BETWEEN 1 AND 3 AND b = 'x'", &[("a", "2"), ("b", "x")]);
    wanted(
        "a BETWEEN low AND high",
        &[("a", "2"), ("low", "1"), ("high", "2.5")],
    );
}

#[test]
fn tighter_operators_bind_first_and_blanks_and_comments_do_not_count() {
    wanted("a = 1 OR b = 2 AND c = 3", &[("a", "1")]);
    unwanted("(a = 1 OR b = 2) AND c = 3", &[("a", "1")]);
    wanted("NOT a = TRUE", &[("a", "true")]);
    wanted("/* x **/ a\t=\n1 -- the end", &[("a", "1")]);
    // Without a line end behind them they are signs.
    wanted("a = --1", &[("a", "1")]);
    wanted("a = ---1", &[("a", "-1")]);
    wanted("-- all\na = 1", &[("a", "1")]);
    unwanted("a = 1 -- x\rAND b", &[("a", "1")]);
    wanted("a=.5or a=1e3", &[("a", "1000")]);
    wanted("$_a1 = 1", &[("$_a1", "1")]);
    unwanted("A = 1", &[("a", "1")]);
    wanted(
        "TAGS = 'x' AND KEYS IS NOT NULL",
        &[("TAGS", "x"), ("KEYS", "k")],
    );
}

#[test]
fn a_wrong_expression_is_refused_with_what_stands_where() {
    for (expression, remark) in [
        (
            "a =",
            "Encountered the end at line 1, column 3; expected a property",
        ),
        (
            "a = 1 garbage",
            "Encountered \"garbage\" at line 1, column 7; expected an operator",
        ),
        ("a\n= = 1", "Encountered \"=\" at line 2, column 3"),
        ("a != 1", "Encountered \"!\" at line 1, column 3"),
        ("a = 'x", "Encountered \"'\" at line 1, column 5"),
        (
            "a BETWEEN 1",
            "Encountered the end at line 1, column 11; expected AND",
        ),
        (
            "a IN ()",
            "Encountered \")\" at line 1, column 7; expected a string",
        ),
        (
            "a IN (1)",
            "Encountered \"1\" at line 1, column 7; expected a string",
        ),
        ("a = 007", "Encountered \"0\" at line 1, column 6"),
        ("a LIKE 'x'", "Encountered \"LIKE\" at line 1, column 3"),
        ("", "Encountered the end at line 0, column 0"),
        ("   ", "Encountered the end at line 1, column 3"),
        (
            "a\r\n= 1\r\n AND\r\n",
            "Encountered the end at line 3, column 6",
        ),
        ("a\r= =", "Encountered \"=\" at line 2, column 3"),
        ("a =\t>", "Encountered \">\" at line 1, column 9"),
        ("a =  \t >", "Encountered \">\" at line 1, column 10"),
        ("ab\t>", "Encountered the end at line 1, column 9"),
        ("a = --1\n", "Encountered the end at line 1, column 8"),
        (
            "-- c",
            "Expression will not result in a boolean value: (- (- c))",
        ),
        ("1", "Expression will not result in a boolean value: 1"),
        (
            "'x' AND a",
            "Expression will not result in a boolean value: 'x'",
        ),
        ("a > 'x'", "Value ''x'' cannot be compared."),
        ("NOT a > 1", "Value '(NOT a)' cannot be compared."),
        ("a > TRUE", "Value 'TRUE' cannot be compared."),
        ("a = NULL", "'NULL' cannot be compared."),
        ("TRUE = 1", "'TRUE' cannot be compared with '1'"),
        ("a BETWEEN 3 AND 1", "Illegal values of between"),
        ("a BETWEEN 'a' AND 'b'", "Value ''a'' cannot be compared."),
        (
            "1 IN ('x')",
            "Expected a property for In expression, got: 1",
        ),
        (
            "a = 9223372036854775808",
            "9223372036854775808 is greater than",
        ),
        ("a = 0.0", "0.0 is less than"),
        ("a = 1e999", "1e999 is greater than"),
    ] {
        let found = problem(expression);
        assert!(found.starts_with(remark), "{expression}: {found}");
    }
}

#[test]
fn no_expression_nests_or_grows_without_bound() {
    let deep = |left: &str, right: &str, times: usize| {
        format!("{}a = 1{}", left.repeat(times), right.repeat(times))
    };
    let too_deep = SelectorError::TooDeep.to_string();
    for expression in [
        deep("(", ")", 10_000),
        deep("NOT ", "", 8_000),
        format!("a = {}1", "- ".repeat(10_000)),
        format!("a {}", "= b ".repeat(8_000)),
        format!("a {}", "IS NULL ".repeat(4_000)),
    ] {
        assert_eq!(problem(&expression), too_deep);
    }
    wanted(&deep("(", ")", 60), &[("a", "1")]);
    let long = format!("a = 0{}", " OR a = 1".repeat(3_000));
    wanted(&long, &[("a", "1")]);
    assert!(problem(&" ".repeat(MAX_LENGTH + 1)).starts_with("the expression has 32769 bytes"));
}

#[test]
fn properties_that_are_not_text_match_nothing_and_do_no_harm() {
    let mut bytes = properties(&[("a", "1")]);
    bytes.extend_from_slice(b"b\x01\xff\xfe\x02");
    let b = |expression| {
        Selector::compile(expression)
            .unwrap()
            .matches(Properties::new(&bytes), &mut 0)
    };
    assert!(!b("b > 1") && !b("b = 1.5") && b("b IS NOT NULL") && b("b <> 'x'"));
}

#[test]
fn bloom_filters_have_the_shape_of_apaches() {
    let shape = bloom::Shape::new(20, 32);
    assert_eq!((shape.bits, shape.hashes), (112, 3));
    // Computed by Apache RocketMQ 4.9.7's own class.
    assert_eq!(shape.positions("group", "topic"), [79, 21, 21]);
    let name = "selector-j497-lead-4-9-7";
    assert_eq!(shape.positions(name, name), [48, 62, 29]);
}

#[test]
fn a_selector_looks_at_each_property_once() {
    // Each name is missing, or stands there twice.
    let names: Vec<String> = (0..900).map(|number| format!("p{number}")).collect();
    let terms: Vec<String> = names.iter().map(|name| format!("{name} = 'x'")).collect();
    let selector = Selector::compile(&terms.join(" OR ")).unwrap();
    let pairs: Vec<_> = names.iter().step_by(2).map(|name| (&**name, "y")).collect();
    let mut bytes = properties(&pairs);
    let mut steps = 0;
    assert!(!selector.matches(Properties::new(&bytes), &mut steps));
    assert!(steps < 200_000, "{steps} steps for one message");
    bytes.extend(properties(&[("p898", "x")]));
    assert!(
        selector.matches(Properties::new(&bytes), &mut 0),
        "the last counts"
    );
}

#[test]
fn the_work_of_a_selector_counts_each_look_at_a_long_value() {
    let long = "x".repeat(30_000);
    let bytes = properties(&[("a", &long), ("b", "y")]);
    for (term, looks) in [
        ("a CONTAINS 'zyx'", 1000),
        ("a = 'zyx'", 1000),
        ("b = 'z'", 0),
    ] {
        let terms = vec![term; 1000].join(" OR ");
        let selector = Selector::compile(&terms).unwrap();
        let mut steps = 0;
        assert!(!selector.matches(Properties::new(&bytes), &mut steps));
        let expected = looks * long.len();
        assert!(
            steps >= expected && steps < expected * 2 + 200_000,
            "{steps} steps for {term}"
        );
    }
}

#[test]
fn a_text_of_many_digits_is_no_number() {
    let digits = "1".repeat(1025);
    unwanted("a > 1.0", &[("a", &digits)]);
    wanted("a > 1.0", &[("a", &digits[1..])]);
}

/// Where each looked for the end of its line they took half a minute.
#[test]
fn thousands_of_signs_are_refused_or_a_comment() {
    let signs = "-".repeat(MAX_LENGTH - 16);
    assert!(Selector::compile(&format!("a = {signs}1")).is_err());
    wanted(&format!("a = 1 {signs}"), &[("a", "1")]);
    wanted(&format!("{signs}\na = 1"), &[("a", "1")]);
}
