-- Prints the report as JSON. With arguments (tag, method, body, ids) each request differs: `@` in the body becomes the
-- tag and a count; `@` in the path becomes the same, or with ids > 0 the next of that number of ids.
local count = 0

local function filler(template)
  local before, after = template:match("^(.-)@(.*)$")
  if not before then return function() return template end end
  return function(word) return before .. word .. after end
end

function init(args)
  local tag, method, body, ids = args[1], args[2], args[3], tonumber(args[4])
  if not method then return end
  local fill_path, fill_body = filler(wrk.path), filler(body)
  wrk.headers["Content-Type"] = "application/json"
  request = function()
    count = count + 1
    local word = string.format("%s%08d", tag, count)
    local id = ids > 0 and string.format("%05d", count % ids) or word
    return wrk.format(method, fill_path(id), nil, fill_body(word))
  end
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('\n{"requests": %d, "refused": %d, "failed": %d, "seconds": %f, "p99": %f}\n',
    summary.requests, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    summary.duration / 1e6, latency:percentile(99) / 1e3))
end
