import { setTimeout as delay } from 'node:timers/promises'
import type { Invocation } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'

const REFRESH_INTERVAL_MS = 2_000
/** Clears the screen and moves the cursor to the top left. */
const CLEAR = '\x1b[2J\x1b[H'

/** Prints a table once, or with --watch every two seconds until Ctrl-C. */
export async function showRows<Row>(
  { out, values }: Invocation,
  read: () => Promise<readonly Row[]>,
  tableOfRows: (rows: readonly Row[], columnsMax: number) => string,
): Promise<ExitCode> {
  const isWatching = values.has('watch')
  for (;;) {
    const rows = await read()
    if (!out.isHumanReadable) for (const row of rows) await out.json(row)
    else await out.write((isWatching ? CLEAR : '') + tableOfRows(rows, out.columns))
    if (!isWatching) return EXIT.ok
    await delay(REFRESH_INTERVAL_MS)
  }
}
