"""Takes what people do about alerts at PagerDuty and in Slack back into the fleet."""
