import { type ClientBase, type Connection, Query } from 'pg'

interface Texts {
  /** A statement without parameters and rows that runs first, in the same transaction. */
  readonly before: string
  readonly text: string
  readonly values: readonly unknown[]
}

/** The methods of the extended protocol that pg's `Query` calls. */
interface Wire {
  parse(statement: { text: string }): void
  bind(portal: object): void
  execute(portal: object): void
}

/**
 * Runs an unnamed statement after another one, both before one Sync. Postgres treats them as one transaction (its manual, chapter "Pipelining"). So
 * both need one round trip and one server of a pooler.
 */
export function rowsOf(client: ClientBase, { before, text, values }: Texts): Promise<Record<string, unknown>[]> {
  return new Promise((resolve, reject) => {
    const query = new PairQuery(before, { text, values: [...values], queryMode: 'extended' }, (error, results) => {
      if (error) reject(error)
      else resolve((results as unknown as { rows: Record<string, unknown>[] }[]).at(-1)?.rows ?? [])
    })
    client.query(query)
  })
}

class PairQuery extends Query {
  readonly #before: string

  constructor(before: string, config: object, done: (error: Error | undefined, results: unknown) => void) {
    super(config as ConstructorParameters<typeof Query>[0], undefined, done)
    this.#before = before
  }

  /** Called by `Query.submit`. */
  prepare(connection: Connection): void {
    const wire = connection as unknown as Wire
    wire.parse({ text: this.#before })
    wire.bind({})
    wire.execute({})
    ;(Query.prototype as unknown as { prepare(connection: Connection): void }).prepare.call(this, connection)
  }
}
