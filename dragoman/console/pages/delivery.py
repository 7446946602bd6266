"""Delivery: who is posted events to, what waits and why, and what was given up."""

from dragoman.console.api import ApiFailed
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link


async def show(visit: Visit) -> Answer:
    """Draw the receivers and the dead letters."""
    found = await visit.api.get("/receivers", pageToken=visit.query.get("page", ""))
    letters = await visit.api.get("/dead-letters", pageToken=visit.query.get("letters", ""))
    context = {
        "receivers": found["items"],
        "next": link("/delivery", page=found["nextPageToken"]) if found["nextPageToken"] else "",
        "letters": letters["items"],
        "next_letters": link("/delivery", letters=letters["nextPageToken"])
        if letters["nextPageToken"]
        else "",
        "origin": visit.origin,
    }
    return DrawnPage("delivery.html", "Delivery", context, live=["delivery"], every=5.0)


async def retry(visit: Visit) -> Answer:
    """Have a receiver tried again."""
    done = await visit.api.post(f"/receivers/{visit.params['number']}/retry")
    if done["result"] == "waits":
        return Redirect("/delivery", "Another process delivers to it, and tries it when it is due.")
    return Redirect("/delivery", "It is tried again now.")


async def replay(visit: Visit) -> Answer:
    """Post an event once more that a receiver never took."""
    done = await visit.api.post("/dead-letters/replay", _letter(visit))
    if done["result"] == "delivered":
        return Redirect("/delivery", "The receiver took it.")
    return Redirect("/delivery", "The receiver did not take it this time either.")


async def drop(visit: Visit) -> Answer:
    """Forget an event that a receiver never took."""
    await visit.api.post("/dead-letters/drop", _letter(visit))
    return Redirect("/delivery", "Dropped.")


def _letter(visit: Visit) -> dict[str, int]:
    """Return the event that a form names."""
    receiver, _, position = visit.field("letter").partition(" ")
    if not (receiver.isdecimal() and position.isdecimal()):
        raise ApiFailed(400, "This names no event.")
    return {"receiver": int(receiver), "position": int(position)}
