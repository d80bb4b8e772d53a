/** Exit codes of the tool (docs/reference/cli.md, Output and exit codes). */
export const EXIT = { ok: 0, failed: 1, usage: 2, cancelled: 3, unreachable: 4, refused: 5, interrupted: 130 } as const
export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

/** An error that is shown to the user without a stack trace: the problem and, if there is one, the remedy. */
export class CommandError extends Error {
  readonly exit: ExitCode
  /** The remedy: one sentence or command. */
  readonly next: string | undefined

  constructor(exit: ExitCode, message: string, next?: string, cause?: unknown) {
    super(message, { cause })
    this.name = 'CommandError'
    this.exit = exit
    this.next = next
  }
}

export function usageError(message: string, next?: string): CommandError {
  return new CommandError(EXIT.usage, message, next)
}
