"""Parsed SQL statements as plain values, and the lists of allowed operators and functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "AGGREGATES",
    "ASKED_FUNCTIONS",
    "ASKED_KINDS",
    "ASKED_TABLES",
    "BARE_WORDS",
    "CLOCKS",
    "FUNCTIONS",
    "GENERATORS",
    "KINDS",
    "Part",
    "PlanNode",
]


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_PLANS = """
Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LocalLimit Project Sort SubqueryAlias Union
UnresolvedHaving UnresolvedRelation UnresolvedSubqueryColumnAliases UnresolvedWith WithWindowDefinition
"""
_EXPRESSIONS = """
Add Alias And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce Concat CreateArray CreateNamedStruct
CurrentRow Divide EqualNullSafe EqualTo Exists GreaterThan GreaterThanOrEqual ILike In InSubquery IntegralDivide
IsNotNull IsNull LambdaFunction LessThan LessThanOrEqual Like ListQuery Literal MultiAlias Multiply Not Or Overlay RLike
Remainder ScalarSubquery SortOrder SpecifiedWindowFrame StringLocate StringTrim StringTrimBoth StringTrimLeft
StringTrimRight Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing
UnboundedPreceding UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator
UnresolvedNamedLambdaVariable UnresolvedOrdinal UnresolvedStar UnresolvedWindowExpression UnspecifiedFrame
WindowExpression WindowSpecDefinition
"""
KINDS = _words(_PLANS, _EXPRESSIONS)
"""Operators and expressions of a parsed statement, by the names of Spark's classes."""

AGGREGATES = _words(
    """
    any approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or count count_if every max mean median min
    percentile percentile_cont percentile_disc some sum try_avg try_sum
    """
)
"""Aggregates whose result does not depend on the order of rows, as that of collect_list, first or max_by may."""

GENERATORS = _words("explode explode_outer posexplode posexplode_outer inline inline_outer")

_WINDOWS = "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number window window_time"
_TEXT = """
ascii btrim char char_length character_length chr concat concat_ws contains elt endswith find_in_set initcap instr lcase
left len length levenshtein locate lower ltrim mask octet_length overlay position regexp_count regexp_extract
regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr replace reverse right rtrim soundex split
split_part startswith substr substring substring_index translate trim ucase upper
"""
_NUMBERS = """
abs acos asin atan atan2 bin bround cbrt ceil ceiling conv cos cosh degrees div e exp expm1 floor greatest hex hypot
isnan least ln log log10 log1p log2 mod negative pi pmod positive pow power radians rint round sign signum sin sinh sqrt
tan tanh try_add try_divide try_mod try_multiply try_subtract unhex width_bucket
"""
_TIMES = """
add_months convert_timezone date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour
last_day make_date make_interval make_timestamp minute month monthname months_between next_day quarter second
timestamp_micros timestamp_millis timestamp_seconds to_date to_timestamp to_utc_timestamp trunc try_to_date
try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday weekofyear year
"""
_CASTS = "bigint boolean cast decimal double int smallint string timestamp tinyint to_char to_number try_to_number"
_CHOICES = """
between case coalesce equal_null if ifnull isnotnull isnull nullif nullifzero nvl nvl2 when zeroifnull
"""
_COLLECTIONS = """
aggregate array array_append array_compact array_contains array_distinct array_except array_intersect array_join
array_max array_min array_position array_prepend array_remove array_size array_sort array_union arrays_overlap
arrays_zip cardinality element_at exists filter flatten forall get map map_concat map_contains_key map_entries
map_filter map_from_arrays map_from_entries map_keys map_values named_struct reduce size slice sort_array struct
transform transform_keys transform_values try_element_at zip_with
"""
_HASHES = "crc32 hash md5 sha sha1 sha2 xxhash64 from_json get_json_object json_array_length json_object_keys to_json"

FUNCTIONS = AGGREGATES | GENERATORS | _words(_WINDOWS, _TEXT, _NUMBERS, _TIMES, _CASTS, _CHOICES, _COLLECTIONS, _HASHES)
"""Functions whose result depends on their arguments alone and cannot be much larger than they are."""

_MORE_KINDS = """
AggregateExpression AnyValue AttributeReference Collate CommonExpressionDef CommonExpressionRef Cube CurrentDate
CurrentTimestamp First GroupingSets Last LateralJoin LateralSubquery LikeAll LikeAny LimitAll LocalRelation
LocalTimestamp Lower NotLikeAll NotLikeAny Offset OneRowRelation OuterReference PipeExpression PipeOperator Pivot
RepartitionByExpression Rollup Sample ShiftLeft ShiftRight ShiftRightUnsigned Tail Unpivot UnpivotTransformer
UnresolvedCollation UnresolvedHint UnresolvedInlineTable UnresolvedOrderBy UnresolvedQualify
UnresolvedStarExceptOrReplace UnresolvedTableValuedFunction UnresolvedTVFAliases
"""
ASKED_KINDS = KINDS | _words(_MORE_KINDS)
"""The same and more for ad-hoc queries, whose answers need not be the same each time."""

_MORE_AGGREGATES = """
any_value approx_percentile array_agg collect_list collect_set corr covar_pop covar_samp first first_value grouping
grouping_id histogram_numeric kurtosis last last_value listagg max_by min_by mode percentile_approx regr_avgx regr_avgy
regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness std stddev stddev_pop stddev_samp
string_agg var_pop var_samp variance
"""
_MORE_FUNCTIONS = """
acosh array_insert array_repeat asinh atanh base64 binary bit_count bit_get bit_length collation cot csc curdate
current_date current_timestamp current_timezone date_format decode encode factorial float format_number format_string
from_csv getbit is_valid_utf8 is_variant_null json_tuple localtimestamp lpad luhn_check make_dt_interval
make_timestamp_ltz make_timestamp_ntz make_ym_interval map_zip_with monotonically_increasing_id nanvl now octet_length
parse_json parse_url printf quote rand randn random randstr repeat rpad schema_of_json schema_of_variant sec sentences
sequence session_window shiftleft shiftright shiftrightunsigned shuffle space spark_partition_id stack str_to_map
substring_index time_diff time_trunc to_binary to_csv to_time to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
to_varchar try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz
try_parse_json try_parse_url try_to_binary try_to_time try_url_decode try_variant_get typeof unbase64 uniform
unix_timestamp url_decode url_encode uuid variant_get
"""
ASKED_FUNCTIONS = FUNCTIONS | _words(_MORE_AGGREGATES, _MORE_FUNCTIONS)
"""Functions for ad-hoc queries: row order, clocks and chance may count; programs and files are not allowed."""

ASKED_TABLES = GENERATORS | _words("range")
"""Functions that may stand in the place of a table in an ad-hoc query."""

CLOCKS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b.*", re.IGNORECASE | re.DOTALL)
"""Texts that Spark reads as the present time where a time is expected: `at > 'today'`."""

BARE_WORDS = _words(
    """
    current_catalog current_database current_date current_schema current_time current_timestamp current_timezone
    current_user grouping__id localtimestamp now session_user user
    """
)
"""Words that Spark reads as functions although they have no parentheses, unless a column has their name."""


Part: TypeAlias = "PlanNode | tuple[Part, ...] | str | int | float | bool | None"


@dataclass(frozen=True)
class PlanNode:
    """An operator or expression of a plan, or a value with parts inside one.

    Two nodes are equal when they mean the same, wherever they are in the statement.

    Args:
        kind: the name of Spark's class, such as `Aggregate`. parts: its arguments, in order.
        judged: an operator or expression, as opposed to a value such as a type. text: its part of the statement.
    """

    kind: str
    parts: tuple[Part, ...] = ()
    judged: bool = True
    text: str = field(default="", compare=False)

    def walk(self) -> Iterator[PlanNode]:
        """This node and all nodes inside it, from the outside in; a tree may be deeper than Python's stack."""
        waiting: list[Part] = [self]
        while waiting:
            part = waiting.pop()
            if isinstance(part, PlanNode):
                yield part
                waiting.extend(reversed(part.parts))
            elif isinstance(part, tuple):
                waiting.extend(reversed(part))

    @property
    def words(self) -> tuple[str, ...]:
        """The texts of its first part, where that is a list of names."""
        part = self.parts[0]
        return tuple(word for word in part if isinstance(word, str)) if isinstance(part, tuple) else ()
