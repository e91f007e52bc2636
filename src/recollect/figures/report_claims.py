"""The first table of the report: what the papers claim, and whether the runs of this scale bear it out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import groupby

from recollect.figures.claim_rows import Claim, counted, marked, numbers, of_several

HEADINGS = ("Verdict", "Claim", "Compared", "Difference", "95 % interval", "Wanted", "Seeds × tasks")


def claims_section(claims: Sequence[Claim]) -> str:
    """The section, paper by paper in the order of the claims; nothing where there are none."""
    if not claims:
        return ""
    headline = [claim for claim in claims if claim["headline"]]
    said = [f"{len(claims)} {'claim' if len(claims) == 1 else 'claims'}: {counted(claims)}."]
    if headline:
        said.append(f"Of the {len(headline)} headline ones (bold) {counted(headline)}.")
    said.append(
        "A difference holds where its whole interval lies beyond the margin that is wanted, or within it where both are to be "
        "equal. A claim holds where all of its differences do, or as many as it says."
    )
    headings = "".join(
        f'<th scope="col"{" class=number" if place > 2 else ""}>{_text(name)}</th>'
        for place, name in enumerate(HEADINGS)
    )
    parts = []
    for paper, of_paper in groupby(claims, key=lambda claim: claim["paper"]):
        heading = f'<tr class="paper"><th scope="rowgroup" colspan="{len(HEADINGS)}">{_text(paper)}</th></tr>'
        parts.append(f"<tbody>\n{heading}\n{chr(10).join(_rows(claim) for claim in of_paper)}\n</tbody>")
    body = "\n".join(parts)
    return f"""<section id="claims">
<h2>Claims</h2>
<p class="note">{_text(" ".join(said))}</p>
<div class="table"><table>
<thead><tr>{headings}</tr></thead>
{body}
</table></div>
</section>"""


def _rows(claim: Claim) -> str:
    """A row for each contrast; the claim itself stands beside all of them."""
    contrasts = claim["contrasts"]
    span = f' rowspan="{len(contrasts)}"' if len(contrasts) > 1 else ""
    kind = claim["verdict"].replace(" ", "-")
    statement = f'<a href="#{_text(claim["figure"])}">{_text(claim["statement"])}</a>'
    if claim["headline"]:
        statement = f"<b>{statement}</b>"
    notes = [claim["source"]] if claim["source"] else []
    if claim["published"]:
        values = "; ".join(f"{one['says']}: {one['value']:g}" for one in claim["published"])
        notes.append(f"published: {values}")
    said = _text(of_several(claim)) + (f"<i>{_text('; '.join(notes))}</i>" if notes else "")
    if claim["differs"]:
        said += f"<i>{_text(claim['differs'])}</i>"
    first = f'<td{span} class="verdict {kind}">{marked(claim["verdict"])}</td><td{span} class="claim">{statement}{said}</td>'
    rows = []
    for place, contrast in enumerate(contrasts):
        found = numbers(contrast)
        if not found.effect:  # why stands beside what was to be compared
            found = found._replace(of="")
        mark = marked(contrast["verdict"]).split()[0] + " " if len(contrasts) > 1 else ""
        why = f"<i>{_text(contrast['why'])}</i>" if contrast["why"] else ""
        cells = [f"<td>{mark}{_text(contrast['says'])}{why}</td>"]
        for name, cell in zip(HEADINGS[3:], found, strict=True):
            cells.append(f'<td class="number" data-name="{_text(name)}">{_text(cell)}</td>')
        rows.append(f"<tr>{'' if place else first}{''.join(cells)}</tr>")
    return "\n".join(rows)


def _text(value: object) -> str:
    return html.escape(str(value)).replace(" %", "&nbsp;%")
