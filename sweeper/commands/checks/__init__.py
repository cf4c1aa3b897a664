"""What the doctor looks at; each check looks and changes nothing that stays."""
