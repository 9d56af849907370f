"""Small workbooks, written without a library."""

import zipfile
from xml.sax.saxutils import escape, quoteattr

_SPACE = "http://schemas.openxmlformats.org"
_OFFICE = "urn:oasis:names:tc:opendocument:xmlns"
_NAMES = " ".join(f'xmlns:{name}="{_OFFICE}:{name}:1.0"' for name in ("office", "table", "text"))


def _xlsx_cell(value):
    if isinstance(value, bool):
        return f'<c t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float):
        return f"<c><v>{value}</v></c>"
    return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>' if value else "<c/>"


def _ods_cell(value):
    if isinstance(value, bool):
        return f'<table:table-cell office:value-type="boolean" office:boolean-value="{str(value).lower()}"/>'
    if isinstance(value, int | float):
        return f'<table:table-cell office:value-type="float" office:value="{value}"/>'
    if not value:
        return "<table:table-cell/>"
    return f'<table:table-cell office:value-type="string"><text:p>{escape(value)}</text:p></table:table-cell>'


def write_xlsx(path, sheets, hidden=()):
    """Write rows of cells by the name of the sheet."""
    numbers = range(1, len(sheets) + 1)
    kind = f"{_SPACE}/officeDocument/2006/relationships"
    states = ['state="hidden"' if name in hidden else "" for name in sheets]
    listed = "".join(
        f'<sheet name={quoteattr(name)} sheetId="{number}" r:id="r{number}" {state}/>'
        for number, name, state in zip(numbers, sheets, states, strict=True)
    )
    links = "".join(
        f'<Relationship Id="r{number}" Type="{kind}/worksheet" Target="worksheets/sheet{number}.xml"/>'
        for number in numbers
    )
    package = f"{_SPACE}/package/2006"
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("[Content_Types].xml", f'<Types xmlns="{package}/content-types"/>')
        target = f'<Relationship Id="a" Type="{kind}/officeDocument" Target="xl/workbook.xml"/>'
        book.writestr("_rels/.rels", f'<Relationships xmlns="{package}/relationships">{target}</Relationships>')
        main = f'xmlns="{_SPACE}/spreadsheetml/2006/main"'
        book.writestr("xl/workbook.xml", f'<workbook {main} xmlns:r="{kind}"><sheets>{listed}</sheets></workbook>')
        book.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{package}/relationships">{links}</Relationships>'
        )
        for number, rows in zip(numbers, sheets.values(), strict=True):
            text = "".join(f"<row>{''.join(map(_xlsx_cell, row))}</row>" for row in rows)
            book.writestr(
                f"xl/worksheets/sheet{number}.xml", f"<worksheet {main}><sheetData>{text}</sheetData></worksheet>"
            )
    return path


def write_ods(path, sheets):
    """Write rows of cells by the name of the sheet."""
    tables = ""
    for name, rows in sheets.items():
        text = "".join(f"<table:table-row>{''.join(map(_ods_cell, row))}</table:table-row>" for row in rows)
        tables += f"<table:table table:name={quoteattr(name)}>{text}</table:table>"
    body = f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>"
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        book.writestr("META-INF/manifest.xml", f'<m:manifest xmlns:m="{_OFFICE}:manifest:1.0"/>')
        book.writestr("content.xml", f"<office:document-content {_NAMES}>{body}</office:document-content>")
    return path


def edit(path, change):
    """Replace the content of each file within a workbook by what `change` makes of it."""
    with zipfile.ZipFile(path) as book:
        parts = {name: change(book.read(name)) for name in book.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name, content in parts.items():
            book.writestr(name, content)
    return path
