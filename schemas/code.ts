import { z } from 'zod'

/** Longest time limit of a run, in seconds; the operator may lower it. */
export const RUN_SECONDS_MAX = 120
/** The time limit of a run that names none, in seconds. */
export const RUN_SECONDS_DEFAULT = 30

/** Files in the directory of a run, and their bytes together. */
export const RUN_FILES_MAX = 20
export const RUN_FILES_BYTES_MAX = 16 * 1024 * 1024

/**
 * The wire shape of `POST /v1/tools/code` (docs/protocol.md, Code). What depends on settings, and on code points rather
 * than UTF-16 units, is checked by hand. Unknown fields are ignored.
 */
export const CodeBody = z.looseObject({
  code: z.string().min(1),
  lang: z.literal('python'),
  timeout: z.int().min(1).nullish().describe('Seconds'),
  libraries: z.array(z.string()).max(100).nullish().describe('Have to be installed; never installs anything'),
  stream: z.boolean().nullish(),
})
export type CodeBody = z.infer<typeof CodeBody>

/** A file of the caller's that code finds in its directory. */
export const CodeFile = z.strictObject({
  id: z.string().describe('Of the file, which is the key of its blob'),
  name: z.string().describe('In the directory: no path'),
  bytes: z.int().min(0),
})
export type CodeFile = z.infer<typeof CodeFile>

/** A run, as it travels to a worker. */
export const CodeRequest = z.strictObject({
  code: z.string(),
  timeout_seconds: z.int().min(1).max(RUN_SECONDS_MAX),
  files: z.array(CodeFile).max(RUN_FILES_MAX).optional(),
  user_id: z.string().optional().describe("The caller's own name for its end user, for the log"),
})
export type CodeRequest = z.infer<typeof CodeRequest>

/**
 * What a run yields: its output while it goes on, in pieces that fit into a record of the queue, then how it ended. No field
 * is named `text`: that of a model's events is counted in tokens.
 */
export const CodeEvent = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('output'), stream: z.enum(['stdout', 'stderr']), piece: z.string() }),
  z.strictObject({
    type: z.literal('plot'),
    piece: z.string().describe('Base64 of PNG; the pieces of a plot follow each other, whatever comes between'),
    is_last: z.boolean().describe('The plot is whole'),
  }),
  z.strictObject({
    type: z.literal('end'),
    success: z.boolean(),
    exit_code: z.int(),
    execution_time: z.number().describe('Seconds'),
    violations: z.array(z.string()),
  }),
])
export type CodeEvent = z.infer<typeof CodeEvent>

/** A figure that was open when the code called `plt.show()`. */
export const CodePlot = z.strictObject({
  content_base64: z.string(),
  format: z.literal('png'),
  filename: z.string().describe('plot_1.png, plot_2.png, …'),
})
export type CodePlot = z.infer<typeof CodePlot>

/** The answer of `POST /v1/tools/code`. */
export const CodeResult = z.strictObject({
  success: z.boolean().describe('False for security violations, timeouts and exceeded limits'),
  stdout: z.string(),
  stderr: z.string(),
  exit_code: z.int().describe('Of the interpreter; -1 when it did not end by itself'),
  execution_time: z.number().describe('Seconds'),
  security_checked: z.literal(true),
  violations: z.array(z.string()),
  plots: z.array(CodePlot),
})
export type CodeResult = z.infer<typeof CodeResult>
