"""The stages of the pipeline, in order.

To add one, write a file, add its weight to `PipelineWeights` and list it here.
"""

from mnemorank.ranking.stage import Stage
from mnemorank.ranking.stages.entity_links import EntityLinks
from mnemorank.ranking.stages.query_dates import QueryDates
from mnemorank.ranking.stages.same_day import SameDay

STAGES: tuple[Stage, ...] = (EntityLinks(), SameDay(), QueryDates())
