"""Run folders -> chart data -> charts, tables and one page that opens anywhere.

    theme, charts         colours and looks; a Chart is rows of plain values and how they are drawn; PNG and SVG of it
    ..._charts            one file per verb: its records -> its charts; `verb_charts` finds them by verb. Those of latency have
                          their causes (`latency_causes`) and what both share (`latency_panels`) beside them
    parts                 what a page is made of, as plain data
    verb_answers          what stands on top of the page of every other verb: `timing_answers` and `job_answers` tell it as a
                          `told`, `verb_numbers` its tables, `next_steps` what to do after any run
    tables, flattening    columns of texts, or records of any kind -> tables
    search_...            the page of a search; any_page that of any other verb; comparing several runs on one page, with
                          what they took for the same things (`comparing_times`)
    common_sections       what every page ends with; `commands` writes the command line that asks again
    pages                 which page belongs to which run
    page, markdown        a page -> HTML with everything inside, or Markdown with pictures beside it
    exporting, tracking   records -> CSV, Parquet, MLflow
    live                  the page of a running search, on this machine only
    making                all files that `hound report` was asked for; `writing` puts each there whole or not at all

Nothing here measures, knows torch or needs a network. Rows are plain values, so that tests read them without a browser.
"""
