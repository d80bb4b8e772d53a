import { z } from 'zod'

/** Maximum time limit of a run, in seconds. Operators may set a lower limit. */
export const RUN_SECONDS_MAX = 120
export const RUN_SECONDS_DEFAULT = 30

/** Maximum number and total bytes of the files in the directory of a run. */
export const RUN_FILES_MAX = 20
export const RUN_FILES_BYTES_MAX = 16 * 1024 * 1024

/**
 * Body of `POST /v1/tools/code` (docs/reference/compatibility.md, Code). The decoder checks the limits that depend on settings, and the length of
 * texts in code points. Unknown fields are ignored.
 */
export const CodeBody = z.looseObject({
  code: z.string().min(1).describe('Python source code'),
  lang: z.literal('python'),
  timeout: z.int().min(1).nullish().describe('Time limit, in seconds. Default: 30'),
  libraries: z
    .array(z.string())
    .max(100)
    .nullish()
    .describe('Packages that the code needs. A missing package is an error; nothing is installed'),
  stream: z.boolean().nullish().describe('Stream the output as server-sent events. Default: false'),
})
export type CodeBody = z.infer<typeof CodeBody>

export const CodeFile = z.strictObject({
  id: z.string().describe('File id, which is also the key of the blob'),
  name: z.string().describe('File name without a path'),
  bytes: z.int().min(0),
})
export type CodeFile = z.infer<typeof CodeFile>

export const CodeRequest = z.strictObject({
  code: z.string(),
  timeout_seconds: z.int().min(1).max(RUN_SECONDS_MAX),
  files: z.array(CodeFile).max(RUN_FILES_MAX).optional(),
  user_id: z.string().optional().describe('Client-side id of the end user, for the log'),
})
export type CodeRequest = z.infer<typeof CodeRequest>

/**
 * Events of a run: pieces of output, each small enough for a queue record, then one `end`. The field of output is named `piece`, because a field
 * `text` would be counted as tokens of a model.
 */
export const CodeEvent = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('output'), stream: z.enum(['stdout', 'stderr']), piece: z.string() }),
  z.strictObject({
    type: z.literal('plot'),
    piece: z
      .string()
      .describe('Piece of a PNG in base64. Pieces of one plot are in order; other events may be between them'),
    is_last: z.boolean().describe('Last piece of the plot'),
  }),
  z.strictObject({
    type: z.literal('end'),
    success: z.boolean(),
    exit_code: z.int(),
    execution_time: z.number().describe('Run time, in seconds'),
    violations: z.array(z.string()),
  }),
])
export type CodeEvent = z.infer<typeof CodeEvent>

/** A matplotlib figure that was open when the program called `plt.show()`. */
export const CodePlot = z.strictObject({
  content_base64: z.string(),
  format: z.literal('png'),
  filename: z.string().describe('plot_1.png, plot_2.png, …'),
})
export type CodePlot = z.infer<typeof CodePlot>

export const CodeResult = z.strictObject({
  success: z.boolean().describe('false: exception, security violation, timeout or exceeded limit'),
  stdout: z.string(),
  stderr: z.string(),
  exit_code: z.int().describe('Exit code of the interpreter. -1: the run was stopped'),
  execution_time: z.number().describe('Run time, in seconds'),
  security_checked: z.literal(true),
  violations: z.array(z.string()),
  plots: z.array(CodePlot),
})
export type CodeResult = z.infer<typeof CodeResult>
