"""The payments service: it authorises, captures and voids."""
