"""What the claims team can do: two look-ups that may be repeated, and a payment that may not."""

RULES = {"QC": {"ruleset": "QC-auto", "authority_limit": 15000}, "ON": {"ruleset": "ON-auto", "authority_limit": 25000}}


def look_up_rules(province: str) -> dict[str, object]:
    """The rules for a loss in a province: ruleset, and how much may be paid without asking anybody."""
    return dict(RULES[province])


def police_report(claim: str) -> dict[str, object]:
    """The police report about a claim, if there is one."""
    return {"report": "QC-2231", "injury": True, "claim": claim}


def pay(amount: int) -> str:
    """Pay an amount to the claimant. It cannot be undone."""
    return f"paid {amount}"
